"""How ranks meet; that two of them do is proven by the trainings."""

import dataclasses

import pytest
import torch.distributed as dist

from pytest_llmbench.core.errors import RunError
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.rendezvous import process_group


def test_one_rank_meets_itself_on_a_free_port(context: RankContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with process_group(context) as device:
        assert device.type == "cpu"
        assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
    assert not dist.is_initialized()


def test_a_missing_rank_0_is_named(context: RankContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    other = dataclasses.replace(context, rank=1, world_size=2)
    message = r"rank 0 did not publish .*rendezvous\.json within 0\.1 s"
    with pytest.raises(RunError, match=message) as error, process_group(other, timeout_s=0.1):
        pytest.fail("there is nobody to meet")
    assert error.value.kind == "no_rendezvous"
