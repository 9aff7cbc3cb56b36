"""Micro batches that a rank was fed, each known by a key."""

import pytest

torch = pytest.importorskip("torch")

from pytest_llmbench.workloads.rank import fed  # noqa: E402 - it imports torch


@pytest.mark.parametrize("again", [0, 1])
def test_small_micro_batches_are_told_apart(monkeypatch: pytest.MonkeyPatch, again: int) -> None:
    """12,800 of two short sequences of a small vocabulary, as a recipe of `llmbench init` with more steps has them."""
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 1)
    watched = fed.Fed()
    watched.watch([torch.nn.Linear(2, 2)], torch.nn.Linear)
    batches = torch.randint(256, (12_800, 2, 64), generator=torch.Generator().manual_seed(1))
    for batch in (*batches, *batches[:again]):
        watched.take(batch)
    watched.step_counts()
    assert watched.trained(parameters=1, dtypes=(), copy=0).repeated == again
