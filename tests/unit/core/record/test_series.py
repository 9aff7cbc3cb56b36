"""What a run logged, as data."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pytest_llmbench.core.record.series import RankInfo, Step, StepSeries
from pytest_llmbench.core.wire.step_events import TrainingEvent

COUNTS = st.integers(0, 2**63)
STEPS = st.builds(
    Step, step=COUNTS, seconds=st.floats(), tokens=COUNTS, samples=COUNTS, loss=st.floats(), grad_norm=st.floats(),
    peak_memory_bytes=st.none() | COUNTS, ranks=COUNTS,
)  # fmt: skip
RANKS = st.builds(
    RankInfo, rank=COUNTS, host=st.text(max_size=9), pid=COUNTS, local_rank=COUNTS, device=st.text(max_size=9),
    versions=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
    matmul_flops_per_s=st.none() | st.floats(), ended=st.booleans(), failure=st.none() | st.text(max_size=9),
    failed_at=st.none() | st.floats(),
)  # fmt: skip


@given(st.lists(STEPS, max_size=3), st.lists(RANKS, max_size=2), st.lists(st.text(max_size=9), max_size=2))
def test_every_series_survives_json(steps: list[Step], ranks: list[RankInfo], unreadable: list[str]) -> None:
    series = StepSeries(ranks=tuple(ranks), steps=tuple(steps), unreadable=tuple(unreadable))
    again = StepSeries.model_validate_json(series.model_dump_json())
    assert repr(again) == repr(series)  # a NaN is not equal to itself


TRAINING: dict[str, Any] = {
    "event": "training", "world_size": 8, "tensor": 2, "pipeline": 1, "tensor_rank": 0, "pipeline_rank": 0,
    "copy_rank": 3, "layers": 12, "parameters": 125_000_000, "precision": "bf16", "sequence_length": None,
    "micro_batch_size": 8,
}  # fmt: skip
RANK: dict[str, Any] = {"rank": 0, "host": "n1", "pid": 1, "local_rank": 0, "device": "cpu", "versions": {}}
DAMAGE: dict[str, dict[str, Any]] = {
    "a text for a count": {"world_size": "8"}, "a bool for a count": {"tensor": True},
    "a float for a count": {"layers": 12.0}, "zero ranks": {"world_size": 0}, "a negative count": {"parameters": -1},
    "none for a count": {"copy_rank": None}, "a text for a count that may be none": {"micro_batch_size": "8"},
    "a number for a word": {"precision": 16}, "another event": {"event": "step"},
    "a key that nobody knows": {"surprise": 1},
}  # fmt: skip
# As a record is read from its file, and as it is made again after its texts were cleaned.
READ: tuple[Callable[[dict[str, Any]], RankInfo], ...] = (
    lambda given: RankInfo.model_validate_json(json.dumps(given)),
    RankInfo.model_validate,
)


def test_counts_of_a_training_are_read_from_a_record() -> None:
    for read in READ:
        assert read({**RANK, "training": TRAINING}).training == TrainingEvent(**TRAINING)


@pytest.mark.parametrize("changes", DAMAGE.values(), ids=DAMAGE)
def test_a_record_with_damaged_counts_of_a_training_is_refused(changes: dict[str, Any]) -> None:
    """Nothing is taken for a number that is none, and the error names the key."""
    (key,) = changes
    for read in READ:
        with pytest.raises(ValidationError, match=rf"training\.{key}\n"):
            read({**RANK, "training": {**TRAINING, **changes}})


@pytest.mark.parametrize("key", [name for name in TRAINING if name != "event"])
def test_a_record_that_lacks_a_count_of_a_training_is_refused(key: str) -> None:
    left = {name: value for name, value in TRAINING.items() if name != key}
    for read in READ:
        with pytest.raises(ValidationError, match=rf"training\.{key}\n  Field required"):
            read({**RANK, "training": left})
