"""Memory between GPUs: what is said where there is none; it is used in test_fsdp_copies and test_megatron_copies."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.distributed._symmetric_memory as symmetric_memory

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.workloads.node.machine import beside_allocator
from pytest_llmbench.workloads.training import peer_memory


def test_gpus_that_do_not_reach_one_another_are_named_as_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """With PyTorch's own words, and what to say in place; memory that was not had is not counted."""

    def refuse(*_: object, **__: object) -> Any:
        raise RuntimeError("CUDASymmetricMemoryAllocator::rendezvous: detected allocations from overlapping devices")

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(symmetric_memory, "empty", lambda size, **_: torch.empty(size))
    monkeypatch.setattr(symmetric_memory, "rendezvous", refuse)
    counted = list(beside_allocator)
    with pytest.raises(
        ConfigError, match=re.escape("(see nvidia-smi topo -p2p rw); set collectives: nccl: CUDASymmetricMemory")
    ):
        peer_memory.Symmetric(8, torch.bfloat16, None)  # type: ignore[arg-type]
    assert beside_allocator == counted
