"""One collective among a few ranks, by itself: its failure raises an exception and leaves the process alive."""

import os
import time
from collections.abc import Sequence
from datetime import timedelta
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

_PATTERN = 13


class DirectGroup:
    """A process group with its own timeout: NCCL between GPUs and gloo between CPUs, as in a training."""

    def __init__(self, store: Any, ranks: Sequence[int], rank: int, device: torch.device, timeout_s: float) -> None:
        """Join the others by a store of this group alone; `timeout_s` limits each wait."""
        self.size = len(ranks)
        self._seat = ranks.index(rank)
        self._device, self._timeout_s = device, timeout_s
        self._group = _open(store, self._seat, self.size, device, timedelta(seconds=timeout_s))

    def wrong_values(self, size_bytes: int) -> int:
        """Sum up known numbers, and count the elements of the result that are not their sum."""
        numbers = torch.arange(size_bytes // 4, device=self._device).remainder_(_PATTERN).float()
        tensor = numbers + self._seat
        self.all_reduce(tensor)
        # Small whole numbers: exact in any order.
        expected = numbers * self.size + self.size * (self.size - 1) / 2
        return int((tensor != expected).sum().item())

    def seconds(self, size_bytes: int, iterations: int, warm_up: int) -> float:
        """Median duration of one all_reduce, each waited for."""
        tensor = torch.zeros(size_bytes // 4, device=self._device)
        durations = []
        for _ in range(warm_up + iterations):
            began = time.perf_counter()
            self.all_reduce(tensor)
            durations.append(time.perf_counter() - began)
        return median(durations[warm_up:])

    def busbw(self, size_bytes: int, seconds: float) -> float:
        """Bus bandwidth of an all_reduce as nccl-tests define it, GB/s: the rate of the links."""
        return size_bytes / seconds / 1e9 * 2 * (self.size - 1) / self.size

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Sum a tensor over the group, and wait for it.

        Raises:
            RuntimeError: another rank is gone, or does not answer in time.
        """
        self._group.allreduce([tensor]).wait()
        if self._device.type == "cuda":
            self._settle()

    def close(self) -> None:
        """Free NCCL's buffers and connections."""
        if self._device.type == "cuda":
            self._group.abort()

    def _settle(self) -> None:
        """Wait for the GPU up to the timeout: a kernel whose partner is gone runs for ever."""
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
        deadline = time.monotonic() + self._timeout_s
        while not done.query():  # type: ignore[no-untyped-call]
            if time.monotonic() > deadline:
                self._group.abort()
                raise TimeoutError(f"all_reduce not done within {self._timeout_s:g} s")


def _open(store: Any, seat: int, size: int, device: torch.device, timeout: timedelta) -> Any:
    if device.type != "cuda":
        return dist.ProcessGroupGloo(store, seat, size, timeout)
    # By default NCCL's watchdog ends the whole process when one group of it times out.
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout  # noqa: SLF001 - torch's own name for it
    return dist.ProcessGroupNCCL(store, seat, size, options)
