"""Check for wrong numbers: two groups of ranks run the same training, and again after ranks have swapped places.

A wrong number reaches all of its group with the next exchange. So the first disagreement of a training counts, and in
it the numbers from before the exchange. In another turn, other ranks compute the same numbers: with three that agree
on a number, the fourth is wrong.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pydantic import PositiveInt

from pytest_llmbench.checks.answers import describe_damage, read_answers, silent
from pytest_llmbench.checks.base import (
    Answer,
    CheckDefaults,
    CheckSettings,
    Fleet,
    Site,
    deadline_of,
    options_of,
)
from pytest_llmbench.checks.compute.nodes.answer import TURNS, RankNumbers, Turn, groups
from pytest_llmbench.checks.compute.rates import finding, list_answered, subject
from pytest_llmbench.core.quantity import listed
from pytest_llmbench.core.record.health import Finding, Report, Severity
from pytest_llmbench.core.schema import Strict

_ACTION = "take the node out, run the vendor's diagnostics, and replace the part: it computes wrong numbers in silence"
# A GPU trains the full size in a fraction of a second a step; the small one is enough to try the code.
_FULL = {"hidden": 256, "layers": 4, "sequences": 16, "length": 512}
_SMALL = {"hidden": 32, "layers": 2, "sequences": 2, "length": 16}


class SameNumbersOptions(Strict):
    """Options of the check."""

    steps: PositiveInt = 50
    """Number of steps of each of the three trainings; more steps find rarer faults."""


class SameNumbers(CheckDefaults):
    """A deterministic training in two groups, and again after each of two swaps."""

    name = "same_numbers"
    family = "compute"
    summary = "a deterministic training gives the same bits on every GPU (or CPU); two swaps name the one that is wrong"
    options: type[Strict] = SameNumbersOptions
    deadline_s = 600.0

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        site = fleet.site
        steps = options_of(self, settings, SameNumbersOptions).steps
        size = _FULL if site.is_full_gpu else _SMALL
        config = {"steps": steps, "timeout_s": deadline_of(self, settings), **size}
        probe = self.probe_devices(site, settings, "replica:train", config, together=True)
        return _judge(read_answers(fleet.run([probe])[0], RankNumbers), site, steps)


def _judge(answers: Sequence[Answer[RankNumbers]], site: Site, steps: int) -> Report:
    """Compare what ranks computed; a comparison needs the answers of all of them."""
    if missing := silent(answers):
        reason = f"not compared: {listed(missing)} did not answer"
        return Report(unjudged={answer.host: missing.get(answer.host, reason) for answer in answers})
    teams = _group_teams({answer.rank: data for answer, data in list_answered(answers)})
    if contradiction := _find_contradiction(teams, len(answers), steps):
        return Report(unjudged={answer.host: describe_damage("turns", contradiction) for answer in answers})
    named = {answer.rank: (answer.host, subject(site, answer)) for answer in answers}
    findings: list[Finding] = []
    unjudged: dict[str, str] = {}
    for team in teams:
        verdict = judge_numbers([{rank: turns[number] for rank, turns in team.items()} for number in range(TURNS)])
        findings += [_make_finding(*named[rank], f"first {what}") for rank, what in verdict.wrong.items()]
        for suspects in verdict.suspects:
            devices = ", ".join(" ".join(named[rank]) for rank in sorted(suspects))
            hosts = {named[rank][0] for rank in suspects}
            if len(hosts) == 1:
                findings.append(_make_finding(min(hosts), "", f"on one of {devices}"))
                continue
            reason = f"one of these computes or sends wrong numbers, and it is not known which: {devices}"
            unjudged |= dict.fromkeys(sorted(hosts), reason)
    alone = [" ".join(named[rank]) for team in teams if len(team) == 1 for rank in team]
    notes = (f"compared with itself alone, because no other device is like it: {listed(alone)}",) if alone else ()
    return Report(findings=tuple(findings), unjudged=unjudged, notes=notes)


def _make_finding(host: str, device: str, where: str) -> Finding:
    #: finding other_numbers: a deterministic training gives other numbers than on such devices
    message = f"a deterministic training gives other numbers than on the others: {where}"
    return finding(host, device, "other_numbers", Severity.ISOLATE, message, _ACTION)


def _group_teams(answers: Mapping[int, RankNumbers]) -> list[dict[int, tuple[Turn, ...]]]:
    teams: dict[int, dict[int, tuple[Turn, ...]]] = {}
    for rank, answer in sorted(answers.items()):
        seat = next((turn.seat for turn in answer.turns if turn.seat is not None), None)
        if seat is not None:
            teams.setdefault(seat.team, {})[rank] = answer.turns
    return list(teams.values())


def _find_contradiction(teams: Sequence[Mapping[int, Sequence[Turn]]], ranks: int, steps: int) -> str:
    if sum(map(len, teams)) != ranks or any(len(turns) != TURNS for team in teams for turns in team.values()):
        return f"each of {ranks} ranks must have {TURNS} turns and a seat"
    for team in teams:
        for number in range(TURNS):
            due = {
                rank: (group, shard, len(seated))
                for group, seated in enumerate(groups([*team], number))
                for shard, rank in enumerate(seated)
            }
            for rank, turns in team.items():
                seat, done = turns[number].seat, turns[number].steps
                if (None if seat is None else (seat.group, seat.shard)) != (due[rank][:2] if rank in due else None):
                    return f"rank {rank} had another seat than its own in turn {number}"
                if rank in due and (len(done) != steps or any(len(step.gathered) != due[rank][2] for step in done)):
                    return f"rank {rank} did not answer with all of {steps} steps of turn {number}"
    return ""


class NumberOf(NamedTuple):
    """A number: the gradients and the loss of a share of the data in a step, or the weights after it."""

    step: int
    stage: str
    shard: int

    def __str__(self) -> str:
        if self.stage == "weights":
            return f"the weights after step {self.step}"
        return f"loss and gradients of step {self.step}, before the exchange"


@dataclass(frozen=True, kw_only=True, slots=True)
class NumbersVerdict:
    """The result of a team's turns."""

    wrong: Mapping[int, str] = field(default_factory=dict)  # the first wrong number of each wrong rank
    suspects: tuple[frozenset[int], ...] = ()  # ranks one of which is wrong, for each disagreement without a majority


def judge_numbers(turns: Sequence[Mapping[int, Turn]]) -> NumbersVerdict:
    """Judge the turns of one team, each by rank."""
    votes: dict[NumberOf, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    damaged: list[frozenset[int]] = []
    wrong: dict[int, str] = {}
    for ranks in turns:
        seated = {rank: turn for rank, turn in ranks.items() if turn.seat is not None}
        for number in range(min((len(turn.steps) for turn in seated.values()), default=0)):
            numbers = list(_list_numbers(seated, number, "local"))
            _count(votes, numbers)
            own, lost = _find_lost(seated, number)
            wrong |= dict.fromkeys(own - wrong.keys(), f"its own copy of what it sent in step {number + 1}")
            damaged += lost
            values = {(place, digest) for _, place, digest in numbers}
            if len(values) > len({place for place, _ in values}) or own or lost:
                break
            # Wrong weights are their rank's alone until the next exchange.
            _count(votes, _list_numbers(seated, number, "weights"))
    # A link has two ends: ranks in every damaged transfer, or, without such, all ranks of each.
    everywhere = frozenset.intersection(*damaged) if damaged else None
    undecided = [everywhere] if everywhere else damaged
    ends = (rank for suspects in undecided if len(suspects) == 1 for rank in suspects)
    wrong |= dict.fromkeys(ends, "a part that it sent or got")
    for place in sorted(votes):
        odd, tied = _find_minority(votes[place])
        wrong |= {rank: str(place) for rank in sorted(odd - wrong.keys())}
        undecided += [tied] if tied else []
    # A wrong rank explains its disagreements; one alone disagrees with itself.
    alone = {rank for suspects in undecided if len(suspects) == 1 for rank in suspects}
    wrong |= dict.fromkeys(alone - wrong.keys(), "numbers that it computes differently each time")
    unexplained = (suspects for suspects in undecided if not suspects & wrong.keys())
    return NumbersVerdict(wrong=wrong, suspects=tuple(dict.fromkeys(unexplained)))


def _list_numbers(seated: Mapping[int, Turn], number: int, stage: str) -> Iterator[tuple[int, NumberOf, str]]:
    for rank, turn in seated.items():
        if turn.seat is not None:
            shard = turn.seat.shard if stage == "local" else 0
            yield rank, NumberOf(number + 1, stage, shard), getattr(turn.steps[number], stage)


def _count(votes: dict[NumberOf, dict[str, set[int]]], numbers: Iterable[tuple[int, NumberOf, str]]) -> None:
    for rank, place, digest in numbers:
        votes[place][digest].add(rank)


def _find_lost(seated: Mapping[int, Turn], number: int) -> tuple[set[int], list[frozenset[int]]]:
    """Ranks whose own part differs from their computed one, and each sender with the receivers of another part."""
    own: set[int] = set()
    lost = []
    for rank, turn in seated.items():
        if turn.seat is None:
            continue
        sent = turn.steps[number].local
        got = {
            other: theirs.steps[number].gathered[turn.seat.shard]
            for other, theirs in seated.items()
            if theirs.seat is not None and theirs.seat.group == turn.seat.group
        }
        others = {other for other, digest in got.items() if digest != sent}
        if rank in others:
            own.add(rank)
        elif others:
            lost.append(frozenset(others | {rank}))
    return own, lost


def _find_minority(votes: Mapping[str, set[int]]) -> tuple[set[int], frozenset[int]]:
    """Ranks that a majority of ranks contradicts, or, without one, all that disagree."""
    if len(votes) < 2:
        return set(), frozenset()
    first, second, *_ = sorted(votes.values(), key=len, reverse=True)
    if len(first) > len(second):
        return {rank for ranks in votes.values() if ranks is not first for rank in ranks}, frozenset()
    return set(), frozenset(rank for ranks in votes.values() for rank in ranks)
