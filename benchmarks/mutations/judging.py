"""Judging a log, whole or damaged, on the ways of a session: reader, doubts, sanity gate, statistics, verdict."""

from __future__ import annotations

import atexit
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Literal

from pytest_llmbench.checks.base import Answer, Check, CheckSettings, Probe, Site
from pytest_llmbench.cluster.runs import Replayed, RunSpec, Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.system import System
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.health import HealthRecord, Report
from pytest_llmbench.core.record.records import RunRecord, Verdict
from pytest_llmbench.engines.base import BatchLog, get_engine
from pytest_llmbench.session.replay import replayed_record

Files = Mapping[str, bytes]
State = Literal["judged", "failed", "error"]
_HOST = "n1"
# Units and statistics of which less is better; more is better of all others.
_LESS = {"s", "us", "GiB", "W", "degC", "J/token", "throttled", "power_capped"}
_TOO_GOOD = 0.01
_WORST: tuple[State, ...] = ("judged", "failed", "error")


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """The verdict on a log, and its numbers."""

    verdict: State  # `judged` for a run with numbers or a check that passes, `failed` for a check that does not
    why: str = ""  # reason of the error, or the finding
    numbers: Mapping[str, tuple[float, str]]  # measurements: value and unit by name
    unconfirmed: str = ""  # words of the record on numbers that nothing confirms


Judge = Callable[[Files], Judgement]


def too_good(whole: Judgement, left: Judgement) -> list[str]:
    """What a damaged log says better than the whole one, by 1 % or more."""
    if left.verdict == "error":
        return []
    verdict = ["verdict"] if (left.verdict, whole.verdict) == ("judged", "failed") else []
    return verdict + [name for name, (value, unit) in left.numbers.items() if _better(name, value, unit, whole)]


def _better(name: str, value: float, unit: str, whole: Judgement) -> bool:
    if name not in whole.numbers:
        return True
    before = whole.numbers[name][0]
    gain = before - value if {unit, name} & _LESS else value - before
    return gain >= _TOO_GOOD * abs(before) and gain > 0.0


class Runs:
    """Judges the logs of runs of one recipe as `--replay` does."""

    def __init__(self, recipe: Recipe, system: System, **shape: Any) -> None:
        root = new_folder()
        self._settings = Settings(system=system, cluster="replay", allocation="run", run_dir=root)
        self._session = Session(id="mutations", folder=root / "session")
        self._logs = root / "logs"
        self._replayed = Replayed(logs=self._logs, **shape)
        self._run = RunSpec(key=recipe.name, recipe=recipe.on(self._replayed.topology), replayed=self._replayed)

    def __call__(self, files: Files) -> Judgement:
        """Judge the files of one run."""
        return _of_record(self.record(files))

    def record(self, files: Files) -> RunRecord:
        """The record of a run with these files."""
        for name, data in files.items():
            path = self._logs / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return replayed_record(self._run, self._replayed, self._settings, self._session)

    def evaluated(self, files: Files) -> Judgement:
        """Judge a log as the row of the source's evaluator, beside the verdict with which we show it."""
        record = self.record(files)
        if record.problem is not None:
            return _of_record(record)
        evaluate, (name,) = get_engine(record.recipe.engine).evaluate, files
        assert evaluate is not None
        row = evaluate([BatchLog(path=self._logs / name, hosts=())], 0.0).decode().splitlines()[1]
        rate = float(row.rsplit(",", 2)[1])
        return Judgement(
            verdict="judged", numbers={"row": (rate, "samples/s")}, unconfirmed="; ".join(record.unconfirmed)
        )


def _of_record(record: RunRecord) -> Judgement:
    if record.problem is not None:
        return Judgement(verdict="error", why=f"{record.problem.kind}: {record.problem.message}", numbers={})
    numbers = {name: (metric.value, metric.unit) for name, metric in record.metrics.items()}
    return Judgement(verdict="judged", numbers=numbers, unconfirmed="; ".join(record.unconfirmed))


def new_folder() -> Path:
    """A folder until this process ends; in memory, where that can be, for a campaign writes very many files."""
    folder = Path(mkdtemp(prefix="mutations-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@dataclass(frozen=True, kw_only=True, slots=True)
class Checks:
    """Judges what one node's programs printed as checks do."""

    checks: Sequence[Check]  # all of them are asked, and the worst verdict counts
    site: Site  # facts of the cluster
    answer: Callable[[Files], Mapping[str, Any]]  # a node's answer to their probe, by the files
    options: Mapping[str, Any]  # theirs
    references: tuple[Reference, ...] = ()  # theirs

    def __call__(self, files: Files) -> Judgement:
        """Judge what a node printed."""
        fleet = _Fleet(self.site, self.answer(files))
        settings = CheckSettings(options=self.options, references=self.references)
        reports = [(check, check.run(fleet, settings)) for check in self.checks]
        states = [_state(check, report) for check, report in reports]
        numbers = {each.statistic: (each.value, each.unit) for _, report in reports for each in report.readings}
        verdict = max((state for state, _ in states), key=_WORST.index)
        return Judgement(verdict=verdict, why="; ".join(why for _, why in states if why), numbers=numbers)


class _Fleet:
    """A `checks.base.Fleet` of one node whose answer is given."""

    def __init__(self, site: Site, data: Mapping[str, Any]) -> None:
        self.site = site
        self.hosts: tuple[str, ...] = (_HOST,)
        self.folder = Path()
        self._answer = Answer(host=_HOST, rank=0, local_rank=0, data=json.loads(json.dumps(data)))

    def run(self, probes: Sequence[Probe]) -> list[list[Answer]]:
        return [[self._answer] for _ in probes]

    def once(self, _: Probe) -> list[Answer]:
        return [self._answer]


def _state(check: Check, report: Report) -> tuple[State, str]:
    record = HealthRecord(
        session="s", token="t", check=check.name, family=check.family, scope=check.scope, system="mutations",
        cluster="replay", hosts=(_HOST,), folder=".", report=report,
    )  # fmt: skip
    verdict, why = record.state(None if check.scope == "cluster" else 0)
    named: dict[Verdict, State] = {Verdict.PASS: "judged", Verdict.FAIL: "failed"}
    return named.get(verdict, "error"), why
