"""Injected causes: for each seed a run of a few ranks with something wrong in it, or with nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pytest_llmbench.judging.cause.evidence import CauseKind


@dataclass(frozen=True, kw_only=True, slots=True)
class Injected:
    """A run.

    Attributes:
        name: the scenario.
        truth: kinds of causes that are right.
        ranks: how many.
        steps: how many.
        work_s: seconds of work of each rank in each step, asleep unless `burns`.
        burns: the work takes CPU time.
        culprit: the rank at fault; None where it is none, or all.
        late_s: additional work of the culprit.
        data_s: seconds until the culprit, or each rank, has its batch.
        sync_s: seconds that each exchange of gradients takes longer.
        noise: standard deviation of the logarithm of the work.
        every, pause_s: an evaluation after each so many steps, and how long it takes.
        first, first_s: so many steps at the start take so much longer.
        first_rank: on this rank alone.
        quota: share of a CPU that the culprit, or each rank, may have.
        stops: the culprit is stopped and goes on, half of the time.
        crowd: other processes on the ranks' CPU.
        torch: the ranks train a tiny model with DDP over gloo; else a table of logits.
        rate_mbit: rate of the link between the ranks, Mbit/s; None for that of the machine.
        needed: seconds of a step that the threshold needs, as a multiple of the work.
    """

    name: str
    truth: frozenset[CauseKind]
    ranks: int
    steps: int = 40
    work_s: float = 0.03
    burns: bool = False
    culprit: int | None = None
    late_s: float = 0.0
    data_s: float = 0.0
    sync_s: float = 0.0
    noise: float = 0.0
    every: int = 0
    pause_s: float = 0.0
    first: int = 0
    first_s: float = 0.0
    quota: float | None = None
    stops: bool = False
    crowd: int = 0
    needed: float = 1.4
    first_rank: int | None = None
    torch: bool = False
    rate_mbit: float | None = None


def _healthy(chance: random.Random) -> Injected:
    return Injected(
        name="healthy", truth=frozenset({"compute"}), ranks=chance.randint(2, 4), work_s=chance.uniform(0.03, 0.06),
        needed=0.7,
    )  # fmt: skip


def _slow_rank(chance: random.Random) -> Injected:
    ranks, work = chance.randint(2, 4), chance.uniform(0.02, 0.04)
    return Injected(
        name="slow rank", truth=frozenset({"straggler"}), ranks=ranks, work_s=work, culprit=chance.randrange(ranks),
        late_s=work * chance.uniform(0.5, 1.5), needed=1.3,
    )  # fmt: skip


def _stopped_rank(chance: random.Random) -> Injected:
    return Injected(
        name="rank stopped half of the time", truth=frozenset({"straggler"}), ranks=2,
        work_s=chance.uniform(0.012, 0.02), culprit=chance.randrange(2), burns=True, stops=True, needed=1.3,
    )  # fmt: skip


def _slow_disk(chance: random.Random) -> Injected:
    work = chance.uniform(0.02, 0.04)
    return Injected(
        name="slow disk, all ranks", truth=frozenset({"data"}), ranks=chance.randint(2, 4), work_s=work,
        data_s=work * chance.uniform(0.6, 1.5),
    )  # fmt: skip


def _slow_disk_of_one(chance: random.Random) -> Injected:
    ranks, work = chance.randint(2, 4), chance.uniform(0.02, 0.04)
    return Injected(
        name="slow disk, one rank", truth=frozenset({"data"}), ranks=ranks, work_s=work,
        culprit=chance.randrange(ranks), data_s=work * chance.uniform(0.6, 1.5), needed=1.3,
    )  # fmt: skip


def _quota(chance: random.Random) -> Injected:
    return Injected(
        name="CPU quota, all ranks", truth=frozenset({"throttled"}), ranks=2, work_s=0.02, burns=True,
        quota=chance.uniform(0.15, 0.25),
    )  # fmt: skip


def _quota_of_one(chance: random.Random) -> Injected:
    ranks = chance.randint(2, 3)
    return Injected(
        name="CPU quota, one rank", truth=frozenset({"throttled"}), ranks=ranks, work_s=0.015, burns=True,
        culprit=chance.randrange(ranks), quota=chance.uniform(0.15, 0.25), needed=1.3,
    )  # fmt: skip


def _slow_link(chance: random.Random) -> Injected:
    work = chance.uniform(0.02, 0.04)
    return Injected(
        name="slow link", truth=frozenset({"network"}), ranks=chance.randint(2, 4), work_s=work,
        sync_s=work * chance.uniform(0.7, 1.5),
    )  # fmt: skip


def _evaluation(chance: random.Random) -> Injected:
    work = chance.uniform(0.02, 0.03)
    return Injected(
        name="long evaluation", truth=frozenset({"pauses"}), ranks=chance.randint(2, 3), work_s=work, steps=90,
        every=chance.choice((24, 30)), pause_s=work * chance.uniform(15, 30), needed=1.25,
    )  # fmt: skip


def _noise(chance: random.Random) -> Injected:
    return Injected(
        name="heavy noise", truth=frozenset({"noise"}), ranks=chance.randint(2, 4), work_s=0.03,
        noise=chance.uniform(0.5, 0.8), needed=1.0,
    )  # fmt: skip


def _compilation(chance: random.Random) -> Injected:
    return Injected(
        name="long compile", truth=frozenset({"warm-up"}), ranks=chance.randint(2, 3), work_s=0.02,
        first=chance.randint(8, 16), first_s=chance.uniform(0.1, 0.2), steps=30, needed=1.6,
    )  # fmt: skip


def _slow_to_start(chance: random.Random) -> Injected:
    """Damage: one rank is slow in the warm-up alone. Later on nothing is wrong with it."""
    ranks = chance.randint(2, 4)
    return Injected(
        name="rank slow in the warm-up", truth=frozenset({"compute", "warm-up"}), ranks=ranks, work_s=0.04, first=3,
        first_s=0.2, first_rank=chance.randrange(ranks), needed=0.7,
    )  # fmt: skip


def _crowd(chance: random.Random) -> Injected:
    return Injected(
        name="crowded CPU", truth=frozenset({"host"}), ranks=2, work_s=0.012, burns=True, crowd=chance.randint(1, 2),
        needed=1.3, steps=35,
    )  # fmt: skip


def _torch_healthy(chance: random.Random) -> Injected:
    return Injected(
        name="healthy, torch", truth=frozenset({"compute"}), ranks=2, torch=True, work_s=chance.uniform(0.04, 0.06),
        needed=0.7,
    )  # fmt: skip


def _torch_slow_rank(chance: random.Random) -> Injected:
    work = chance.uniform(0.02, 0.04)
    return Injected(
        name="slow rank, torch", truth=frozenset({"straggler"}), ranks=2, torch=True, work_s=work,
        culprit=chance.randrange(2), late_s=work * chance.uniform(0.8, 1.5), needed=1.3,
    )  # fmt: skip


def _torch_slow_disk(chance: random.Random) -> Injected:
    work = chance.uniform(0.02, 0.04)
    return Injected(
        name="slow disk, torch", truth=frozenset({"data"}), ranks=2, torch=True, work_s=work,
        data_s=work * chance.uniform(0.8, 1.5),
    )  # fmt: skip


def _torch_slow_link(chance: random.Random) -> Injected:
    return Injected(
        name="slow link, torch", truth=frozenset({"network"}), ranks=2, torch=True, work_s=0.03,
        rate_mbit=chance.uniform(20, 60), needed=1.3,
    )  # fmt: skip


# How often each comes in a campaign.
SCENARIOS: Mapping[Callable[[random.Random], Injected], int] = {
    _healthy: 22, _slow_rank: 14, _stopped_rank: 6, _slow_disk: 10, _slow_disk_of_one: 8, _quota: 8, _quota_of_one: 8,
    _slow_link: 12, _evaluation: 10, _noise: 12, _compilation: 10, _slow_to_start: 8, _crowd: 6,
    _torch_healthy: 4, _torch_slow_rank: 4, _torch_slow_disk: 3, _torch_slow_link: 5,
}  # fmt: skip


def cases(seed: int, share: float) -> list[Injected]:
    """All runs of a campaign, in an order by chance."""
    chance = random.Random(seed)
    made = [make(chance) for make, number in SCENARIOS.items() for _ in range(max(1, round(share * number)))]
    chance.shuffle(made)
    return made
