"""Whose numbers are wrong: votes over what ranks computed in two groups, before and after they changed places."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.checks.base import CheckSettings, Probe, Site, get_check
from pytest_llmbench.checks.compute.nodes.answer import TURNS, Seat, StepDigests, Turn, groups, teams
from pytest_llmbench.checks.compute.same_numbers import NumbersVerdict, judge_numbers
from pytest_llmbench.core.record.health import Report
from tests.support.fleet import AnsweringFleet, ProcessFleet, cpu_site

STEPS = 4
KINDS = ("local", "sum", "weights")


@dataclass(frozen=True)
class Fault:
    """A rank that is wrong, in what, in which steps of which turns."""

    rank: int
    kind: str
    turns: frozenset[int]
    steps: frozenset[int]

    def strikes(self, rank: int, kind: str, turn: int, step: int) -> bool:
        return (rank, kind) == (self.rank, self.kind) and turn in self.turns and step in self.steps


def mixed(*parts: object) -> str:
    """A number that follows from others, and from nothing else."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def train(team: list[int], turn: int, faults: list[Fault]) -> dict[int, Turn]:
    """One turn of a team: every number follows from the weights and the data, unless a fault strikes."""
    found: dict[int, Turn] = {rank: Turn(seat=None, steps=()) for rank in team}
    for number, group in enumerate(groups(team, turn)):
        weights, told = dict.fromkeys(group, "first"), {rank: [] for rank in group}  # type: ignore[var-annotated]
        for step in range(1, STEPS + 1):

            def wrong(rank: int, kind: str, value: str, step: int = step) -> str:
                return mixed("wrong", rank, value, turn) if any(
                    fault.strikes(rank, kind, turn, step) for fault in faults
                ) else value  # fmt: skip

            local = {r: wrong(r, "local", mixed(weights[r], step, shard)) for shard, r in enumerate(group)}
            held = {r: wrong(r, "own", local[r]) for r in group}
            sent = {r: wrong(r, "send", held[r]) for r in group}
            for rank in group:
                parts = tuple(held[r] if r == rank else wrong(rank, "receive", sent[r]) for r in group)
                after = wrong(rank, "sum", mixed(parts))
                told[rank].append(StepDigests(local=local[rank], gathered=parts, weights=after))
                weights[rank] = wrong(rank, "weights", after)
        for shard, rank in enumerate(group):
            seat = Seat(team=0, group=number, shard=shard)  # type: ignore[arg-type]
            found[rank] = Turn(seat=seat, steps=tuple(told[rank]))
    return found


def judged(ranks: int, *faults: Fault) -> NumbersVerdict:
    return judge_numbers([train([*range(ranks)], turn, [*faults]) for turn in range(TURNS)])


def always(rank: int, kind: str) -> Fault:
    return Fault(rank, kind, frozenset(range(TURNS)), frozenset(range(STEPS + 1)))


@given(st.integers(1, 16))
def test_ranks_that_agree_are_not_accused(ranks: int) -> None:
    assert judged(ranks) == NumbersVerdict()


@given(
    st.integers(4, 16), st.integers(0, 15), st.sampled_from(KINDS), st.integers(0, TURNS - 1), st.integers(1, STEPS - 1)
)
def test_one_wrong_number_names_its_rank(ranks: int, rank: int, kind: str, turn: int, step: int) -> None:
    rank %= ranks
    found = judged(ranks, Fault(rank, kind, frozenset({turn}), frozenset({step})))
    seated = rank in {seat for group in groups([*range(ranks)], turn) for seat in group}
    assert ({*found.wrong}, found.suspects) == ({rank} if seated else set(), ())


@given(st.integers(3, 16), st.integers(0, 15), st.sampled_from(KINDS))
def test_a_rank_that_is_always_wrong(ranks: int, rank: int, kind: str) -> None:
    found = judged(ranks, always(rank % ranks, kind))
    assert ({*found.wrong}, found.suspects) == ({rank % ranks}, ())


@given(
    st.integers(1, 16), st.sampled_from([*KINDS, "send", "receive", "own"]), st.integers(0, 15),
    st.frozensets(st.integers(0, TURNS - 1)), st.frozensets(st.integers(1, STEPS)),
)  # fmt: skip
def test_no_good_rank_is_named(ranks: int, kind: str, rank: int, turns: frozenset[int], steps: frozenset[int]) -> None:
    """Whichever numbers are wrong, the wrong rank is named or among the suspects."""
    fault = Fault(rank % ranks, kind, turns, steps)
    found = judged(ranks, fault)
    assert found.wrong.keys() <= {fault.rank}
    assert all(fault.rank in each for each in found.suspects)


@given(st.integers(6, 16), st.integers(0, 15), st.integers(1, 15), st.sampled_from(KINDS), st.sampled_from(KINDS))
def test_two_wrong_ranks(ranks: int, first: int, apart: int, one: str, other: str) -> None:
    bad = {first % ranks, (first + apart) % ranks}
    found = judged(ranks, *(always(rank, kind) for rank, kind in zip(sorted(bad), (one, other), strict=False)))
    assert found.wrong.keys() <= bad
    assert found.wrong or found.suspects


def test_two_ranks_that_differ_are_both_suspect_and_one_alone_is_held_against_itself() -> None:
    """Each repeats its own numbers, and either may be right; one that does not repeat them is the wrong one."""
    turns = [train([0, 1], 0, [Fault(1, "local", frozenset({0}), frozenset({1}))])] * TURNS
    found = judge_numbers(turns)
    assert (found.wrong, found.suspects) == ({}, (frozenset({0, 1}),))
    assert judge_numbers([*turns[:1], train([0, 1], 1, [])]).wrong.keys() == {1}
    found = judged(1, Fault(0, "local", frozenset({1}), frozenset({2})))
    assert found.wrong.keys() == {0}


def test_a_transfer_that_was_damaged_names_the_rank_that_is_part_of_every_one() -> None:
    assert judged(8, always(3, "send")).wrong.keys() == {3}
    found = judged(4, Fault(2, "receive", frozenset({0}), frozenset({1})))
    assert found.wrong == {}
    assert found.suspects == (frozenset({2, 3}),)


@given(st.integers(2, 16), st.integers(0, 15))
def test_a_rank_that_damages_its_own_part(ranks: int, rank: int) -> None:
    once = Fault(rank % ranks, "own", frozenset({1}), frozenset({2}))
    seated = once.rank in {seat for group in groups([*range(ranks)], 1) for seat in group}
    found = judged(ranks, once)
    assert ({*found.wrong}, found.suspects) == ({once.rank} if seated else set(), ())


@given(st.integers(1, 200))
def test_teams_hold_everyone_once(ranks: int) -> None:
    found = teams(range(ranks))
    assert [rank for team in found for rank in team] == list(range(ranks))
    assert all(min(ranks, 8) <= len(team) <= 16 for team in found)


@given(st.integers(2, 16))
def test_everyone_has_a_seat_after_one_swap(ranks: int) -> None:
    seated: set[int] = set()
    for turn in (0, 1):
        one, other = groups([*range(ranks)], turn)
        assert len(one) == len(other) == ranks // 2
        assert not {*one} & {*other}
        seated |= {*one, *other}
    assert seated == set(range(ranks))


@pytest.mark.parametrize("lost", [0, 1])
def test_a_training_that_lacks_steps_proves_nothing(lost: int) -> None:
    turns = [train([0, 1, 2, 3], turn, []) for turn in range(TURNS)]
    turns[0][lost] = Turn(seat=turns[0][lost].seat, steps=())
    assert judge_numbers(turns) == NumbersVerdict()


def fleet_of(
    *faults: Fault, hosts: tuple[str, ...] = ("a", "b", "c", "d"), changes: Mapping[int, Any] | None = None,
    gpus: int = 2,
) -> AnsweringFleet:  # fmt: skip
    """Nodes with GPUs whose ranks trained so; `changes` are other answers, by rank, and a text is why there is none."""
    team = [*range(gpus * len(hosts))]
    turns = [train(team, turn, [*faults]) for turn in range(TURNS)]
    told = {r: {"device": "H200", "turns": [turn[r].model_dump(mode="json") for turn in turns]} for r in team}
    answers = {**told, **(changes or {})}
    site = Site(system="test", nodes=len(hosts), gpus_per_node=gpus)
    return AnsweringFleet(site, hosts, lambda _, host, gpu: answers[hosts.index(host) * gpus + gpu])


def checked(fleet: Any, steps: int = STEPS) -> Report:
    return get_check("same_numbers").run(fleet, CheckSettings(options={"steps": steps}))


def test_the_gpu_with_wrong_numbers_is_named() -> None:
    report = checked(fleet_of(Fault(5, "local", frozenset({0}), frozenset({2}))))
    (finding,) = report.findings
    assert (finding.host, finding.subject, finding.kind) == ("c", "GPU 1", "other_numbers")
    assert finding.severity.fails
    assert "first loss and gradients of step 2, before the exchange" in finding.message
    assert not report.unjudged
    assert checked(fleet_of()) == Report()


def test_nodes_that_nothing_tells_apart_are_not_judged() -> None:
    """A damaged transfer between two nodes is no pass for either; within a node it is a fault of that node."""
    once = Fault(2, "receive", frozenset({0}), frozenset({1}))
    between = checked(fleet_of(once, gpus=1))
    assert not between.findings
    assert between.unjudged.keys() == {"c", "d"}
    assert (
        "one of these computes or sends wrong numbers, and it is not known which: c GPU 0, d GPU 0"
        in (between.unjudged["c"])
    )
    within = checked(fleet_of(once, hosts=("a", "b")))
    assert [(finding.host, finding.subject) for finding in within.findings] == [("b", "")]
    assert "on one of b GPU 0, b GPU 1" in within.findings[0].message
    assert not within.unjudged


@pytest.mark.parametrize("damage", ["cut", "short", "seat", "silent", "lost part"])
def test_a_part_of_the_numbers_is_no_pass(damage: str) -> None:
    data: Any = fleet_of().once(Probe(name="p", entry="e", deadline_s=1.0, ranks_per_node=2))[3].data
    assert isinstance(data, dict)
    if damage == "cut":
        data["turns"].pop()
    elif damage == "short":
        data["turns"][1]["steps"].pop()
    elif damage == "seat":
        data["turns"][1]["seat"]["shard"] += 1
    elif damage == "lost part":
        local, gathered, weights = data["turns"][1]["steps"][0]
        data["turns"][1]["steps"][0] = [local, gathered[:1], weights]
    report = checked(fleet_of(changes={3: "it died" if damage == "silent" else data}))
    assert report.unjudged.keys() == {"a", "b", "c", "d"}
    assert not report.findings
    if damage == "silent":
        assert "it died" in report.unjudged["b"]
        assert "b did not answer" in report.unjudged["a"]


def test_real_ranks_compute_the_same(tmp_path: Path) -> None:
    """A rank whose processor computes by other instructions is compared with its like alone, and not accused."""
    env = {"d": {"ATEN_CPU_CAPABILITY": "default"}}
    fleet = ProcessFleet(site=cpu_site(4), hosts=("a", "b", "c", "d"), folder=tmp_path, env=env, torch=True)
    report = checked(fleet, steps=3)
    assert (report.findings, report.unjudged) == ((), {})
    assert report.notes == ("compared with itself alone, because no other device is like it: d CPU",)
