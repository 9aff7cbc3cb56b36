"""Rounds of small groups of ranks, in one step: every group measures a collective, all groups of a round at once.

A step per pair would start every rank's process, and import PyTorch, once per round. Here a rank goes from group to
group, each with a process group and a timeout of its own. A rank that dies or hangs costs the others one wait: it is
given up at the start of the next round, and the answers of its groups name it.
"""

import atexit
import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from statistics import median
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import DistStoreError, PrefixStore  # type: ignore[attr-defined]  # public, not marked so

from pytest_llmbench.checks.network.nodes.answer import GroupCollective, MeasuredGame, PlayedGame, RankGames, Sizes
from pytest_llmbench.core.record.curves import busbw_factor
from pytest_llmbench.workloads.node.machine import device_name
from pytest_llmbench.workloads.node.processes import exit_now
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.nccl_lines import NcclRecord
from pytest_llmbench.workloads.rank.probe import ProbeLog
from pytest_llmbench.workloads.rank.rendezvous import device_of, open_store

_PATTERN = 13
_BLOCK = _PATTERN << 18  # elements that are compared at once
# The largest message of which sums are checked, and the first of an all_gather.
_CHECKED, _TRIED = 1 << 28, 1 << 26
# A group takes about so long for its timed calls, and at most so long for one; both in seconds.
_SPENT_S, _CALL_S = 3.0, 10.0
_FEWEST_CALLS = 3
_ALIGNED = 16  # bytes of a part
_LONGEST_ERROR = 300


class PairsPlan(Sizes):
    """The rounds to measure."""

    rounds: Sequence[Sequence[Sequence[int]]]  # groups of ranks, disjoint within each round
    collective: GroupCollective = "all_reduce"
    nccl: bool = False  # whether NCCL prints its lines, which slows the measurement
    limit_s: float  # time at which to answer with the results so far


def play(context: RankContext, log: ProbeLog) -> RankGames:
    """Play this rank's part of all rounds. Raises LLMBenchError if rank 0 is missing, or a GPU for this rank."""
    plan = PairsPlan(**context.config)
    record = NcclRecord(context) if plan.nccl else None
    player = _Player(context, log, plan)
    # A call to a frozen store and the start of NCCL may hang for ever: they stay behind in a thread.
    thread = Thread(target=player.run, daemon=True)
    thread.start()
    thread.join(plan.limit_s)
    stopped = f"busy at the limit of {plan.limit_s:g} s: {player.phase}" if thread.is_alive() else player.stopped
    if player.failed_to_start is not None:
        raise player.failed_to_start
    if thread.is_alive() or player.broken:
        atexit.register(exit_now, 0)
    return RankGames(
        device=device_name(context), games=tuple(player.games), stopped=stopped,
        nccl=record.read() if record else None,
    )  # fmt: skip


class _Player:
    """One rank on its way through the rounds."""

    def __init__(self, context: RankContext, log: ProbeLog, plan: PairsPlan) -> None:
        self.games: list[PlayedGame] = []
        self.phase = "start"
        self.stopped: str | None = None
        self.failed_to_start: Exception | None = None
        self._context, self._log, self._plan = context, log, plan
        self._rank, self._everyone = context.rank, set(range(context.world_size))
        self._given_up: set[int] = set()
        self._device = torch.device("cpu")
        self._store: Any = None
        self.broken: list[DirectGroup] = []
        # A group that waits for a hanging rank comes late to the next round, and must be waited for.
        self._wait_s = 2 * plan.timeout_s + 1

    def run(self) -> None:
        try:
            self._enter()
        except Exception as error:  # noqa: BLE001 - raised again where the answer is made
            self.failed_to_start = error
            return
        try:
            for number, groups in enumerate(self._plan.rounds):
                self._play_round(number, groups)
            self._leave()
        except Exception as error:  # noqa: BLE001 - the earlier measurements are an answer
            self.stopped = f"{self.phase}: {_first_line(error)}"

    def _enter(self) -> None:
        self._set_phase("meet")
        self._device = device_of(self._context)
        self._store = open_store(self._context, self._plan.patience_s)
        self._store.append("given-up", "")
        self._line_up("start", self._everyone, self._plan.patience_s)

    def _play_round(self, number: int, groups: Sequence[Sequence[int]]) -> None:
        mine = next((index for index, ranks in enumerate(groups) if self._rank in ranks), None)
        if mine is None:
            return
        self._set_phase(f"round {number} with ranks {list(groups[mine])}")
        self._line_up(f"round-{number}", {rank for ranks in groups for rank in ranks}, self._wait_s)
        missing = [rank for rank in groups[mine] if rank in self._given_up]
        if missing:
            self.games.append(PlayedGame(round=number, group=mine, missing=tuple(missing)))
            return
        outcome = self._measure(f"{number}-{mine}", groups[mine])
        measured, error = (outcome, None) if isinstance(outcome, MeasuredGame) else (None, outcome)
        self.games.append(PlayedGame(round=number, group=mine, measured=measured, error=error))

    def _measure(self, name: str, ranks: Sequence[int]) -> MeasuredGame | str:
        """Measure in a group; return the measurement, or the error in words."""
        plan = self._plan
        group: DirectGroup | None = None
        try:
            group = DirectGroup(PrefixStore(name, self._store), ranks, self._rank, self._device, plan.timeout_s)
            checked = min(plan.bytes, _CHECKED)
            wrong = group.wrong_values(checked)
            latency = group.seconds(plan.small_bytes, plan.iterations, plan.warm_up)
            gathers = plan.collective == "all_gather"
            measure = group.gather_seconds if gathers else group.seconds
            size = group.agree_on_size(plan.bytes, measure)
            seconds = measure(size, plan.iterations, plan.warm_up)
            wrong += group.wrong_values(checked) + (group.wrong_parts() if gathers else 0)
            group.close()
        except Exception as error:  # noqa: BLE001 - it is the outcome of this game
            if group is not None:
                self.broken.append(group)  # kept until the process ends: its destructor may wait for hanging ranks
            return _first_line(error)
        busbw = size / seconds / 1e9 * busbw_factor(plan.collective, len(ranks))  # as nccl-tests define it
        return MeasuredGame(bytes=size, seconds=seconds, busbw=busbw, latency_s=latency, wrong=wrong)

    def _leave(self) -> None:
        """Leave the store; rank 0, which serves it, leaves last."""
        self._set_phase("end")
        self._line_up("end", self._everyone, self._wait_s if self._rank == 0 else None)

    def _line_up(self, name: str, who: set[int], wait_s: float | None) -> None:
        """Wait for all ranks but those given up, and give up the late ones."""
        self._store.append(f"{name}/who", f"{self._rank},")
        if self._store.add(f"{name}/count", 1) >= len(who - self._given_up):
            self._store.set(f"{name}/go", "")
        if wait_s is None:
            return
        try:
            self._store.wait([f"{name}/go"], timedelta(seconds=wait_s))
        except DistStoreError:
            missing = who - self._ranks(f"{name}/who")
            self._store.append("given-up", "".join(f"{rank}," for rank in sorted(missing)))
            self._store.set(f"{name}/go", "")
        self._given_up = self._ranks("given-up")
        if self._rank in self._given_up:
            raise TimeoutError(f"the others gave up waiting for rank {self._rank}")

    def _ranks(self, key: str) -> set[int]:
        return {int(rank) for rank in self._store.get(key).decode().split(",") if rank}

    def _set_phase(self, phase: str) -> None:
        self.phase = phase
        self._log.phase(phase)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"[:_LONGEST_ERROR]


class DirectGroup:
    """A process group with its own timeout: NCCL between GPUs and gloo between CPUs, as in a training."""

    def __init__(self, store: Any, ranks: Sequence[int], rank: int, device: torch.device, timeout_s: float) -> None:
        """Join the others by a store of this group alone; `timeout_s` limits each wait."""
        self.size = len(ranks)
        self._seat = ranks.index(rank)
        self._device, self._timeout_s = device, timeout_s
        self._gathered = torch.empty(0)
        self._group = _open(store, self._seat, self.size, device, timedelta(seconds=timeout_s))

    def wrong_values(self, size_bytes: int) -> int:
        """Sum up known numbers, and count the wrong elements of the result."""
        numbers = torch.arange(size_bytes // 4, device=self._device).remainder_(_PATTERN).float()
        tensor = numbers + self._seat
        self.all_reduce(tensor)
        # Small whole numbers: exact in any order.
        expected = numbers * self.size + self.size * (self.size - 1) / 2
        return int((tensor != expected).sum().item())

    def seconds(self, size_bytes: int, iterations: int, warm_up: int) -> float:
        """Median duration of one all_reduce, each waited for."""
        tensor = torch.zeros(size_bytes // 4, device=self._device)
        return self._time(lambda: self.all_reduce(tensor), iterations, warm_up)

    def gather_seconds(self, size_bytes: int, iterations: int, warm_up: int) -> float:
        """Median duration of one all_gather of messages of that size in all, in place, each waited for."""
        self._gathered = torch.zeros(size_bytes // 4 // self.size * self.size, device=self._device)
        own = self._gathered.tensor_split(self.size)[self._seat]
        for start in range(0, len(own), _BLOCK):
            block = own[start : start + _BLOCK]
            block.copy_(self._pattern(len(block), self._seat))
        # As torch.distributed's own function does.
        return self._time(
            lambda: self._wait(self._group._allgather_base(self._gathered, own)),  # noqa: SLF001
            iterations, warm_up,
        )  # fmt: skip

    def _time(self, call: Callable[[], None], iterations: int, warm_up: int) -> float:
        """Median duration of a call in seconds; calls that take long are fewer, equally many on all ranks."""
        durations: list[float] = []
        needed = warm_up + iterations
        while len(durations) < needed:
            began = time.perf_counter()
            call()
            durations.append(time.perf_counter() - began)
            if len(durations) == warm_up and self._device.type == "cuda":
                affordable = int(_SPENT_S * self._least(1.0 / durations[-1]))
                needed = warm_up + min(iterations, max(_FEWEST_CALLS, affordable))
        return median(durations[warm_up:])

    def agree_on_size(self, size_bytes: int, measure: Callable[[int, int, int], float]) -> int:
        """The size of the message, bytes: less, if a GPU has less memory or the links are very slow."""
        part = _ALIGNED * self.size
        whole = max(part, size_bytes // part * part)
        if self._device.type != "cuda":
            return whole
        torch.cuda.empty_cache()  # memory of earlier groups
        tried = max(part, min(whole, _TRIED) // part * part)
        fast_enough = tried * _CALL_S / measure(tried, _FEWEST_CALLS, 1)
        most = min(whole, fast_enough, 0.8 * torch.cuda.mem_get_info(self._device)[0])
        return max(tried, int(self._least(most)) // part * part)

    def wrong_parts(self) -> int:
        """Count the elements that the last all_gather brought from other places than theirs."""
        wrong = 0
        for seat, part in enumerate(self._gathered.tensor_split(self.size)):
            for start in range(0, len(part), _BLOCK):
                block = part[start : start + _BLOCK]
                wrong += int((block != self._pattern(len(block), seat)).sum().item())
        return wrong

    def _pattern(self, elements: int, seat: int) -> torch.Tensor:
        return torch.arange(elements, device=self._device).remainder_(_PATTERN).float() + seat

    def _least(self, value: float) -> float:
        tensor = torch.tensor([value], dtype=torch.float64, device=self._device)
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp(dist.ReduceOp.MIN)
        self._wait(self._group.allreduce([tensor], options))
        return float(tensor.item())

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Sum a tensor over the group, and wait for it. Raises RuntimeError if another rank is gone or late."""
        self._wait(self._group.allreduce([tensor]))

    def _wait(self, work: Any) -> None:
        work.wait()
        if self._device.type == "cuda":
            self._settle()

    def close(self) -> None:
        """Free NCCL's buffers and connections."""
        if self._device.type == "cuda":
            self._group.abort()

    def _settle(self) -> None:
        """Wait for the GPU until the timeout, because a kernel whose partner is gone never ends."""
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
        deadline = time.monotonic() + self._timeout_s
        while not done.query():  # type: ignore[no-untyped-call]
            if time.monotonic() > deadline:
                self._group.abort()
                raise TimeoutError(f"a collective is not done within {self._timeout_s:g} s")


def _open(store: Any, seat: int, size: int, device: torch.device, timeout: timedelta) -> Any:
    if device.type != "cuda":
        return dist.ProcessGroupGloo(store, seat, size, timeout)
    # By default NCCL's watchdog ends the whole process when one group of it times out.
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout  # noqa: SLF001 - torch's own name for it
    return dist.ProcessGroupNCCL(store, seat, size, options)
