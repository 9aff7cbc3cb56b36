"""Compares the files of a session's folder about a run with its record.

Logs are left to `replay`, which computes the record again; everything else is compared here.
"""

import datetime as dt
import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from math import nan
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import ValidationError

from pytest_llmbench.cluster.runs import Plan, RunSpec
from pytest_llmbench.core.errors import ConfigError, LLMBenchError
from pytest_llmbench.core.files import read_regular
from pytest_llmbench.core.quantity import listed
from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.records import JobTraces, Judgement, Record, RunRecord, SessionVerdicts, Verdict
from pytest_llmbench.core.record.series import EarlyVerdict
from pytest_llmbench.core.wire import layout
from pytest_llmbench.core.wire.driver import CommandTask, read_report
from pytest_llmbench.core.wire.fault import strikes
from pytest_llmbench.core.wire.foreign import REDACTED
from pytest_llmbench.core.wire.task import LaunchedTask, Task
from pytest_llmbench.engines.base import known_statistics
from pytest_llmbench.judging.contradictions import contradictions
from pytest_llmbench.judging.recount import same
from pytest_llmbench.session.folder import KeptSystem, read_events, read_plan, record_files
from pytest_llmbench.session.journal.journal import JournalEvent, digests_of_file
from pytest_llmbench.session.law import flatten, recipe_differences
from pytest_llmbench.session.live.snapshot import LiveSnapshot, read_snapshot, worst

T = TypeVar("T")
# Edits of a record that are not found, with the reason: no other file of the session has the same fact. Reports of
# checks that read files on the nodes cannot be made again either (`CheckNotKeptError`).
UNCHECKED: Mapping[str, str] = {
    "made_by.user": "a login name for people",
    "token": "of a check: its jobs have it as a comment",
    "gpus_per_node": "of a check: as the command line or the system's file asked",
    "cut_off added": "that Slurm ended a run at its limit, to one of a recipe that is meant to be: only the job knew",
    "failed_launches left out": "one that Slurm did not answer is repeated without a word, and has the same lines",
    "lost_nodes left out": "of the last attempt: other runs have it in avoided_nodes only if they began later",
}
# The record is concluded, from all logs, between the end of a run and its line of the journal; clocks may be set.
_CONCLUDED_S = 600.0
# Of a run's verdict: the number with its unit, and the numbers of its threshold; both are compared within the record.
_AS_TEXT = {"measured", "at_least", "at_most"}
# Times as text are cut off after milliseconds.
_MS = 0.0011
_LOST = re.compile(rb'"lost_nodes":\s*\["')
_DECIDED = ("planned", "look", "looks", "alpha", "decided")


def read_task(run: Path) -> LaunchedTask | None:
    """Read the task with which a run was launched; None before its launch."""
    if (run / layout.COMMAND).exists():
        return CommandTask.read(run / layout.COMMAND)
    return Task.read(run / layout.TASK) if (run / layout.TASK).exists() else None


class Agreement:
    """Compares the records of one session with its other files, each of which is read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def objections(self, record: Record) -> list[str]:
        """Each contradiction of a record of a run with itself, and of any record with another file, which is named."""
        own = [text for check in self._CHECKS for text in check(self, record)]
        if isinstance(record, RunRecord):
            own = [*(text for check in self._CHECKS_OF_RUNS for text in check(self, record)), *own]
        return own

    @cached_property
    def plan(self) -> Plan | None:
        """The plan; None for a folder of records alone, and for one whose damage its readers report."""
        return _read_or_none(lambda: read_plan(self.folder))

    @cached_property
    def planned(self) -> Mapping[str, RunSpec]:
        """The runs of the plan by key."""
        return {run.key: run for run in self.plan.runs} if self.plan is not None else {}

    @cached_property
    def kept(self) -> KeptSystem | None:
        """The system as far as the session kept it; None where it did not."""
        return _read_or_none(lambda: KeptSystem.read(self.folder / layout.SYSTEM))

    @cached_property
    def _events(self) -> tuple[JournalEvent, ...] | None:
        return _read_or_none(lambda: read_events(self.folder))

    @cached_property
    def _verdicts(self) -> SessionVerdicts | None:
        return _read_or_none(lambda: SessionVerdicts.read(self.folder / layout.VERDICTS))

    @cached_property
    def _rows(self) -> Mapping[str, Mapping[str, Any]]:
        return {str(row.get("test")): row for row in self._verdicts.tests} if self._verdicts is not None else {}

    @cached_property
    def _live(self) -> LiveSnapshot | None:
        return _read_or_none(lambda: read_snapshot(self.folder))

    @cached_property
    def _slots(self) -> Mapping[str, int | None]:
        """The slot of each test of the plan: groups of nodes and the history have verdicts of their own."""
        return {test.test: test.slot for test in self.plan.tests} if self.plan is not None else {}

    @cached_property
    def _attempts(self) -> list[RunRecord]:
        """The attempts at runs that others followed."""
        return _read_all(self.folder.glob(f"{layout.SUPERSEDED}/*/{layout.RECORD}"))

    @cached_property
    def _losses(self) -> list[RunRecord]:
        """Runs and attempts that lost nodes."""
        runs = _read_all(path for path in record_files(self.folder, "run") if _LOST.search(read_regular(path)))
        return [record for record in (*runs, *self._attempts) if record.lost_nodes]

    @cached_property
    def _unplanned(self) -> list[str]:
        """Runs, checks and tests of the session's last process that its plan lacks: they were taken out."""
        events, start = self._events or (), 0
        for number, event in enumerate(events):
            start = number if event.event == "began" else start
        asked = {"submitting", "finished", *(test for event in events[start : start + 1] for test in event.tests)}
        declared = {layout.HOLDER, *self.planned, *(self.plan.checks if self.plan is not None else ()), *self._slots}
        return sorted({event.name for event in events[start:] if {event.event, event.name} & asked} - declared)

    def _process(self, at: float | None) -> int:
        """Number of the process that had the session at a Unix time: after `--resume` it is another one."""
        return sum(event.at <= (at or 0.0) for event in self._events or () if event.event == "began")

    def _judged(self, record: Record) -> list[Judgement]:
        return [judgement for judgement in record.judgements if judgement.test in self._slots]

    def _of_itself(self, record: RunRecord) -> Iterator[str]:
        for text in contradictions(record, known_statistics(record.recipe)):
            yield f"the record contradicts itself: {text}"
        if (record.replayed is not None) != (record.cluster == "replay"):
            yield f"the record contradicts itself: replayed: {record.replayed}, but cluster is {record.cluster}"
        if record.as_recorded is not None and record.replayed is None:
            yield f"the record contradicts itself: as_recorded: {record.as_recorded}, but replayed is None"

    def _of_system(self, record: Record) -> Iterator[str]:
        if self.kept is not None and (name := self.kept.system.name) != record.system:
            yield f"{layout.SYSTEM}: its system is {name}, in the record {record.system}"

    def _of_judgements(self, record: Record) -> Iterator[str]:
        """Compare the verdicts of a record with each other, and those of a check with its report."""
        tests = [judgement.test for judgement in record.judgements]
        yield from (f"judgements: {test} has {tests.count(test)}" for test in {*tests} if tests.count(test) > 1)
        if isinstance(record, HealthRecord):
            for judgement in self._judged(record):
                state = record.state(self._slots[judgement.test])[0]
                if judgement.verdict is Verdict.PASS is not state:
                    yield f"{judgement.test}: its verdict is PASS, and the report comes to {state}"

    def _of_plan(self, record: RunRecord) -> Iterator[str]:
        if self.plan is None:
            return
        planned = self.planned.get(record.key)
        if planned is None:
            yield f"{layout.PLAN}: it does not have this run"
            return
        if planned.recipe != record.recipe:
            fields = [
                f"{name}: {due}, in the record {kept}"
                for name, kept, due in recipe_differences(record.recipe, planned.recipe)
            ]
            what = "; ".join(fields) or "its references, or words for people"
            yield f"{layout.PLAN}: the recipe in its record is not the one in the plan of the session: {what}"
        told = planned.replayed
        if (record.replayed is None) != (told is None):
            yield f"{layout.PLAN}: its logs are {told and told.logs}, and the record has replayed: {record.replayed}"
        elif told is not None:
            kept = {name: getattr(told, name) for name in ("hosts", "cut_off", "early", "as_recorded", "nodes")}
            kept |= {"replayed": str(told.logs), "run_token": told.token or record.run_token}
            kept["simulated"] = told.simulated or strikes(told.logs) or record.simulated
            yield from _compare(layout.PLAN, kept, dict(record))
            yield from _compare_all(layout.PLAN, told.provenance, record.provenance)
            if record.problem is None and (known := told.disagrees or (told.problem and told.problem.kind)):
                yield f"{layout.PLAN}: its logs came with a problem, and the record has none: {known}"
        asked = planned.early or (told and told.early)
        if record.early is not None and asked is None:
            yield f"{layout.PLAN}: no early verdict was asked for, and the record has one at step {record.early.look}"
        yield from _compare(layout.PLAN, {"repeat": planned.repeat, "look": planned.look}, dict(record))

    def _of_attempts(self, record: RunRecord) -> Iterator[str]:
        """Compare what a run suffered with its earlier attempts and the losses of others, in the same process."""
        ended, submitted = record.timings.ended, record.timings.submitted
        if record.replayed is not None or ended is None or submitted is None:
            return
        mine = self._process(ended)
        for attempt in self._attempts:
            if attempt.key != record.key or attempt.problem is None or self._process(attempt.timings.ended) != mine:
                continue
            where, why = f"{layout.SUPERSEDED}: {attempt.job_id}", f"{attempt.problem.kind}: {attempt.problem.message}"
            if not any(same(kept, why) or same(why, kept) for kept in record.superseded):
                yield f"{where}: this attempt is not in superseded: {why}"
            if lost := {*attempt.lost_nodes} - {*record.lost_nodes}:
                yield f"{where}: this attempt lost {min(lost)}, which is not in lost_nodes"
        for loss in self._losses:
            ended = loss.timings.ended or 0.0
            unseen = {*loss.lost_nodes} - {*record.avoided_nodes, *record.hosts}
            if unseen and self._process(ended) == mine and ended <= submitted:
                yield f"{min(unseen)} was lost under {loss.key} before, and is not in avoided_nodes"

    def _of_metrics(self, record: RunRecord) -> Iterator[str]:
        """Compare the numbers of verdicts with the run's own, where it is judged alone."""
        runs = self.folder / layout.FOLDERS["run"]
        if self.plan is None or any(path.name.startswith(f"{record.key}-repeat") for path in runs.glob("*")):
            return
        alone = {test.test for test in self.plan.tests if test.run == record.key and test.repeats == 1}
        for judgement in self._judged(record):
            metric = record.metrics.get(judgement.statistic or "")
            if metric is None or judgement.value is None or judgement.unit != metric.unit:
                continue
            if judgement.test in alone and not same(judgement.value, metric.value):
                yield f"{judgement.test}: it judged {judgement.measured}, and {judgement.statistic} is {metric.value}"

    def _of_journal(self, record: Record) -> Iterator[str]:
        name, events = layout.JOURNAL, self._events
        if events is None:
            yield f"{name}: it is damaged, so that its lines about this {record.about} are unknown"
        if not events:
            return  # as of a replay
        if self.plan is not None and self._unplanned:
            yield f"{name}: it has {listed(self._unplanned)}, which {layout.PLAN} lacks"
        own = [event for event in events if event.name == record.name]
        finished, ended = [event for event in own if event.event == "finished"], record.timings.ended
        path = self.folder / record.within_session
        if not path.is_file():
            yield f"{layout.RECORD}: it is not in the folder of the {record.about} {record.name}, which it is of"
            return
        # The last record of a repeated run counts. A check may have the name of a run that follows it.
        lasting = finished[-1:] if record.about == "run" else finished
        if lasting and {"", *digests_of_file(read_regular(path))}.isdisjoint(event.record for event in lasting):
            yield f"{name}: the record of this {record.about} was another one when it was written"
        concluded = [event.at - ended for event in finished] if ended is not None else []
        if concluded and not any(abs(late) <= _CONCLUDED_S for late in concluded):
            yield f"{name}: it was finished at Unix time {finished[-1].at:.0f}, by its record at {ended:.0f}"
        if events[-1].event == "ended":  # in a session that goes on, or was killed, lines may be missing
            yield from self._of_whole_journal(record, events, [event.event for event in own])

    def _of_whole_journal(self, record: Record, events: Sequence[JournalEvent], own: Sequence[str]) -> Iterator[str]:
        launched = isinstance(record, RunRecord) and record.job_id is not None
        due = ["submitting", "submitted", "finished"] if launched else ["finished"]
        missing = [] if events[0].event == "began" else ["began"]
        for line in (*missing, *(event for event in due if event not in own)):
            yield f"{layout.JOURNAL}: it lacks the line `{line}` of this {record.about}"
        if isinstance(record, RunRecord):
            known = launched + len(record.failed_launches) + len(record.superseded)
            if (launches := own.count("submitting")) < known:
                yield f"{layout.JOURNAL}: it has {launches} launches of this run, and the record {known}"
        verdicts = {event.name: event.verdict for event in events if event.event == "judged"}
        for judgement in self._judged(record):
            if (kept := verdicts.get(judgement.test, "no verdict")) != judgement.verdict:
                yield f"{layout.JOURNAL}: it has {kept} for {judgement.test}, the record {judgement.verdict}"

    def _of_live(self, record: Record) -> Iterator[str]:
        live, own = self._live, (record.about, record.name)
        task = next((task for task in live.tasks if (task.about, task.name) == own), None) if live is not None else None
        if live is None or live.exit_code is None or task is None or task.state not in {"ended", "judged"}:
            return
        due: dict[str, Any] = {"started": record.timings.started}
        if isinstance(record, RunRecord):
            due |= {
                "steps": record.recipe.steps, "step": max((step.step for step in record.steps), default=0),
                "took_s": record.took_s, "gpus": record.gpus, "nodes": record.nodes,
            }  # fmt: skip
        if task.state == "judged" and self.plan is not None:
            due["verdict"] = worst(judgement.verdict for judgement in self._judged(record))
        yield from _compare(layout.LIVE, {name: getattr(task, name) for name in due}, due)

    def _of_verdicts(self, record: Record) -> Iterator[str]:
        if self._verdicts is None:
            return
        texts = _properties(record) | dict.fromkeys(("run_record", "health_record"), str(record.path))
        texts["run_seconds"] = round(max(record.took_s, 0.0), 3) or None
        facts = {"llmbench_version": record.made_by and record.made_by.llmbench_version}
        facts |= {name: texts[name] for name in ("system", "cluster", "allocation") if name in texts}
        yield from _compare(layout.VERDICTS, self._verdicts.facts, facts)
        for judgement in record.judgements:
            where, row = f"{layout.VERDICTS}: {judgement.test}", self._rows.get(judgement.test)
            if row is None:
                yield f"{where} is not in it, and the record has its verdict"
                continue
            verdict = {name: value for name, value in judgement if name in row or name not in _AS_TEXT}
            yield from _compare(where, {name: row.get(name) for name in verdict}, verdict)
            if isinstance(record, HealthRecord) and (slot := row.get("slot")) not in {None, ""}:
                texts["hosts"] = record.host(int(slot or 0))
            # A row is about the first of the runs that are judged together; one of groups is about none.
            if judgement.test in self._slots and getattr(record, "repeat", 1) == 1:
                row = {name: value or None for name, value in row.items() if name not in verdict}
                yield from _compare(where, row, texts)

    def _of_made_by(self, record: Record) -> Iterator[str]:
        """Compare how a record was made with its times, the command line in the journal, and the tests of the plan."""
        made_by, began = record.made_by, [event for event in self._events or () if event.event == "began"]
        if began and record.session not in (sessions := {event.session or record.session for event in began}):
            yield f"{layout.JOURNAL}: it is of session {min(sessions)}, the record of {record.session}"
        if made_by is None:
            if any(event.session for event in began):  # earlier versions did not sign
                yield f"{layout.JOURNAL}: it says who began the session, and the record not who made it"
            return
        asked = any(word.startswith("--llmbench-simulate") for word in made_by.command)
        if asked and isinstance(record, RunRecord) and record.simulated is None:
            yield f"made_by.command: {shlex.join(made_by.command)}, but simulated is {record.simulated}"
        for name, at in record.timings:
            text = getattr(made_by, name)
            if (text is None) != (at is None) or (text and not abs(_unix(text) - at) <= _MS):
                yield f"made_by.{name}: {text}, but timings.{name} is {at}"
        by = made_by.host, made_by.command
        if began and by not in {(event.host, event.command) for event in began}:
            yield f"{layout.JOURNAL}: no line `began` has the host and the command of made_by: {by}"
        place, _, again = made_by.reproduce.partition(" && ")
        if self.plan is None or REDACTED in again:
            return
        tests = {test.test.partition("::")[2] for test in self.plan.tests}
        words = [word for word in _split(again) if word not in made_by.command and word.partition("::")[2] not in tests]
        if place != f"cd {shlex.quote(made_by.directory)}" or words != ["pytest"]:
            yield f"made_by.reproduce: {made_by.reproduce}, but it was made in {made_by.directory} by {made_by.command}"

    def _of_launch(self, record: RunRecord) -> Iterator[str]:
        run = self.folder / layout.FOLDERS["run"] / record.key
        # One that was never launched, or that could not be, has no files, or those of a launch before.
        if record.replayed is not None or (record.problem is not None and record.job_id is None):
            return
        try:
            yield from (*_of_early_end(run, record), *_of_job(run, record), *_of_task(run, record))
            yield from _of_driver(run, record)
        except (LLMBenchError, ValidationError, OSError) as error:
            yield f"a file of its launch cannot be read: {str(error).partition(chr(10))[0]}"

    _CHECKS_OF_RUNS: ClassVar = (_of_itself, _of_plan, _of_launch, _of_attempts, _of_metrics)
    _CHECKS: ClassVar = (_of_system, _of_judgements, _of_live, _of_journal, _of_verdicts, _of_made_by)


def _read_or_none(read: Callable[[], T]) -> T | None:
    with suppress(ConfigError, OSError):
        return read()
    return None


def _read_all(paths: Iterable[Path]) -> list[RunRecord]:
    records = (_read_or_none(partial(RunRecord.read, path)) for path in paths)
    return [record for record in records if record is not None]


def _of_early_end(run: Path, record: RunRecord) -> Iterator[str]:
    if record.early is None or not record.early.ended_early:
        return
    path = run / layout.ENOUGH
    if not path.is_file():
        yield f"{layout.ENOUGH}: it is missing, and by its record the session ended this run early"
    else:
        asked = EarlyVerdict.model_validate_json(read_regular(path))
        kept, due = ({name: getattr(early, name) for name in _DECIDED} for early in (asked, record.early))
        yield from _compare(layout.ENOUGH, kept, due)


def _of_job(run: Path, record: RunRecord) -> Iterator[str]:
    if (run / layout.JOB).is_file():
        job = JobTraces.read(run / layout.JOB)
        # `allocation` is the Slurm job that holds nodes here, and how they are held there.
        kept = {name: value for name, value in job if value != () and name not in {"allocation", "schema_version"}}
        yield from _compare(layout.JOB, kept, {**dict(record), "submitted": record.timings.submitted})


def _of_task(run: Path, record: RunRecord) -> Iterator[str]:
    if (task := read_task(run)) is None:
        return
    shape = {"nodes": task.nodes, "ranks": task.nodes * task.ranks_per_node, "run_token": task.token}
    if isinstance(task, Task):  # scripts of frameworks know nothing of a fault
        shape["simulated"] = str(task.simulate) if task.simulate is not None else strikes(run)
    yield from _compare("the task of its launch", shape, {name: getattr(record, name) for name in shape})
    config = flatten(json.loads(json.dumps(task.config)) if isinstance(task, Task) else {})
    recipe = flatten(record.recipe.model_dump(mode="json", exclude={"references"}))
    shared = config.keys() & recipe.keys()  # an earlier version had fewer fields
    yield from _compare(layout.TASK, config, {name: recipe[name] for name in sorted(shared)})


def _of_driver(run: Path, record: RunRecord) -> Iterator[str]:
    """Compare the facts of a command's driver; a run that the session stopped waiting for has none."""
    driver, kept, code = read_report(run), {}, "exit_code"
    if record.problem is not None and record.device is None:
        return
    if driver is not None:
        # One on a node that was lost may write its end later.
        ended = driver.exit_code is not None and (record.problem is None or code in record.provenance)
        kept = {**driver.provenance, **({code: str(driver.exit_code)} if ended else {})}
        yield from _compare(layout.DRIVER, {"device": driver.device}, dict(record))
    yield from _compare_all(layout.DRIVER, kept, record.provenance)


def _compare(where: str, kept: Mapping[str, Any], due: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(kept.keys() & due.keys()):
        if not same(due[name], kept[name]):
            yield f"{where}: {name}: it has {kept[name]}, the record {due[name]}"


def _compare_all(where: str, kept: Mapping[str, str], due: Mapping[str, str]) -> Iterator[str]:
    """Compare texts that have to be in both."""
    names = dict.fromkeys((*kept, *due), "nothing")
    yield from _compare(where, {**names, **kept}, {**names, **due})


def _properties(record: Record) -> dict[str, Any]:
    """The plain values of a record as reports have them, an empty one as none."""
    plain: dict[str, Any] = {}
    for name, value in record:
        if isinstance(value, tuple) and all(isinstance(part, str) for part in value):
            plain[name] = (",".join if name == "hosts" else "; ".join)(value) or None
        elif isinstance(value, str | int) or type(record).model_fields[name].annotation == (str | None):
            plain[name] = value or None
    return plain


def _unix(text: str) -> float:
    with suppress(ValueError):
        return dt.datetime.fromisoformat(text).timestamp()
    return nan


def _split(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # a quote is open
        return [command]
