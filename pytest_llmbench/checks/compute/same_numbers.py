"""The same training on two groups of ranks, then with places changed: does every rank compute the same numbers?"""

from collections.abc import Mapping, Sequence

from pydantic import PositiveInt

from pytest_llmbench.checks.answers import damaged, read_answers, silent
from pytest_llmbench.checks.base import Answer, CheckSettings, Fleet, NodeCheck, Probe, Site, deadline_of, options_of
from pytest_llmbench.checks.compute.nodes.seating import TURNS, RankNumbers, Turn, groups
from pytest_llmbench.checks.compute.rates import answered, finding, subject
from pytest_llmbench.checks.compute.voting import judge_numbers
from pytest_llmbench.core.quantity import counted, listed
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


class SameNumbers(NodeCheck):
    """A deterministic training in two groups, and again after each of two swaps."""

    name = "same_numbers"
    family = "compute"
    summary = "a deterministic training gives the same bits on every GPU (or CPU); two swaps name the one that is wrong"
    options: type[Strict] = SameNumbersOptions
    deadline_s = 600.0

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        """Train, and compare."""
        site, deadline_s = fleet.site, deadline_of(self, settings)
        steps = options_of(self, settings, SameNumbersOptions).steps
        size = _FULL if site.is_full_gpu else _SMALL
        probe = Probe(
            name=self.name, entry="pytest_llmbench.checks.compute.nodes.replica:train", together=True,
            config={"steps": steps, "timeout_s": deadline_s, **size}, ranks_per_node=site.ranks_per_node,
            gpus=site.device == "cuda", deadline_s=deadline_s,
        )  # fmt: skip
        return _judge(read_answers(fleet.run([probe])[0], RankNumbers), site, steps)


def _judge(answers: Sequence[Answer[RankNumbers]], site: Site, steps: int) -> Report:
    """Compare what ranks computed; a comparison needs the answers of all of them."""
    if missing := silent(answers):
        reason = f"not compared: {listed(missing)} did not answer"
        return Report(unjudged={answer.host: missing.get(answer.host, reason) for answer in answers})
    teams = _group_teams({answer.rank: data for answer, data in answered(answers)})
    if contradiction := _find_contradiction(teams, len(answers), steps):
        return Report(unjudged={answer.host: damaged("turns", contradiction) for answer in answers})
    named = {answer.rank: (answer.host, subject(site, answer)) for answer in answers}
    findings: list[Finding] = []
    unjudged: dict[str, str] = {}
    for team in teams:
        verdict = judge_numbers([{rank: turns[number] for rank, turns in team.items()} for number in range(TURNS)])
        known = f"known after {counted(verdict.swaps, 'swap')}"
        findings += [_make_finding(*named[rank], f"first {what}; {known}") for rank, what in verdict.wrong.items()]
        for suspects in verdict.suspects:
            devices = ", ".join(" ".join(named[rank]) for rank in sorted(suspects))
            hosts = {named[rank][0] for rank in suspects}
            if len(hosts) == 1:
                findings.append(_make_finding(min(hosts), "", f"on one of {devices}"))
                continue
            reason = f"one of these computes or sends wrong numbers, and it is not known which: {devices}"
            unjudged |= dict.fromkeys(sorted(hosts), reason)
    alone = [" ".join(named[rank]) for team in teams if len(team) == 1 for rank in team]
    notes = (f"compared with itself only, as no other device is like it: {listed(alone)}",) if alone else ()
    return Report(findings=tuple(findings), unjudged=unjudged, notes=notes)


def _make_finding(host: str, device: str, where: str) -> Finding:
    #: finding other_numbers: a deterministic training gives other numbers than on devices like it
    message = f"a deterministic training gives other numbers than on the others: {where}"
    return finding(host, device, "other_numbers", Severity.ISOLATE, message, _ACTION)


def _group_teams(answers: Mapping[int, RankNumbers]) -> list[dict[int, tuple[Turn, ...]]]:
    """The turns of each team, by rank."""
    teams: dict[int, dict[int, tuple[Turn, ...]]] = {}
    for rank, answer in sorted(answers.items()):
        seat = next((turn.seat for turn in answer.turns if turn.seat is not None), None)
        if seat is not None:
            teams.setdefault(seat.team, {})[rank] = answer.turns
    return list(teams.values())


def _find_contradiction(teams: Sequence[Mapping[int, Sequence[Turn]]], ranks: int, steps: int) -> str:
    """The first contradiction between the turns of all ranks; empty without one."""
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
                    return f"rank {rank} did not tell all of {steps} steps of turn {number}"
    return ""
