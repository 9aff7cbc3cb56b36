"""Compares the files of a session's folder about a run with its record.

Logs are left to `replay`, which computes the record again; everything else is compared here.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import ValidationError

from pytest_llmbench.cluster.runs import Plan, RunSpec
from pytest_llmbench.core.errors import ConfigError, LLMBenchError
from pytest_llmbench.core.files import read_regular
from pytest_llmbench.core.record.records import JobTraces, Judgement, Record, RunRecord, SessionVerdicts
from pytest_llmbench.core.record.series import EarlyVerdict
from pytest_llmbench.core.wire import layout
from pytest_llmbench.core.wire.driver import CommandTask
from pytest_llmbench.core.wire.task import LaunchedTask, Task
from pytest_llmbench.engines.base import known_statistics
from pytest_llmbench.judging.contradictions import contradictions
from pytest_llmbench.judging.recount import same
from pytest_llmbench.session.folder import KeptSystem, read_events, read_plan
from pytest_llmbench.session.journal.journal import JournalEvent, digests_of_file
from pytest_llmbench.session.law import flatten, recipe_differences
from pytest_llmbench.session.live.snapshot import LiveSnapshot, read_snapshot, worst

T = TypeVar("T")
# The record is concluded, from all logs, between the end of a run and its line of the journal; clocks may be set.
_CONCLUDED_S = 600.0
_OF_VERDICT = ("verdict", "statistic", "value", "unit", "low", "high", "threshold", "reference")
_DECIDED = ("planned", "look", "looks", "alpha", "decided")


def read_task(run: Path) -> LaunchedTask | None:
    """Read the task with which a run was launched; None before its launch."""
    if (run / layout.COMMAND).exists():
        return CommandTask.read(run / layout.COMMAND)
    return Task.read(run / layout.TASK) if (run / layout.TASK).exists() else None


class Agreement:
    """Compares the records of one session with its other files, each of which is read once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def objections(self, record: Record) -> list[str]:
        """Each contradiction of a record of a run with itself, and of any record with another file, which is named."""
        own = [text for check in self._CHECKS for text in check(self, record)]
        if isinstance(record, RunRecord):
            own = [*(text for check in self._CHECKS_OF_RUNS for text in check(self, record)), *own]
        return own

    @cached_property
    def _plan(self) -> Plan | None:
        """The plan; None for a folder of records alone, and for one whose damage its readers report."""
        return _read_or_none(lambda: read_plan(self._folder))

    @cached_property
    def _runs(self) -> Mapping[str, RunSpec]:
        return {run.key: run for run in self._plan.runs} if self._plan is not None else {}

    @cached_property
    def _system(self) -> KeptSystem | None:
        return _read_or_none(lambda: KeptSystem.read(self._folder / layout.SYSTEM))

    @cached_property
    def _events(self) -> tuple[JournalEvent, ...] | None:
        return _read_or_none(lambda: read_events(self._folder))

    @cached_property
    def _verdicts(self) -> Mapping[str, Mapping[str, Any]]:
        verdicts = _read_or_none(lambda: SessionVerdicts.read(self._folder / layout.VERDICTS))
        return {str(row.get("test")): row for row in verdicts.tests} if verdicts is not None else {}

    @cached_property
    def _live(self) -> LiveSnapshot | None:
        return _read_or_none(lambda: read_snapshot(self._folder))

    def _judged(self, record: Record) -> list[Judgement]:
        """The verdicts of tests of the plan: groups of nodes and the history have verdicts of their own."""
        declared = {test.test for test in self._plan.tests} if self._plan is not None else set()
        return [judgement for judgement in record.judgements if judgement.test in declared]

    def _of_itself(self, record: RunRecord) -> Iterator[str]:
        for text in contradictions(record, known_statistics(record.recipe)):
            yield f"the record contradicts itself: {text}"

    def _of_system(self, record: Record) -> Iterator[str]:
        if self._system is not None and (name := self._system.system.name) != record.system:
            yield f"{layout.SYSTEM}: its system is {name}, in the record {record.system}"

    def _of_plan(self, record: RunRecord) -> Iterator[str]:
        if self._plan is None:
            return
        planned = self._runs.get(record.key)
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
        asked = planned.early or (planned.replayed and planned.replayed.early)
        if record.early is not None and asked is None:
            yield f"{layout.PLAN}: no early verdict was asked for, and the record has one at step {record.early.look}"
        if planned.repeat != record.repeat:
            yield f"{layout.PLAN}: it is run {planned.repeat} of its series, in the record run {record.repeat}"

    def _of_metrics(self, record: RunRecord) -> Iterator[str]:
        """Compare the numbers of verdicts with the run's own, where it is judged alone."""
        runs = self._folder / layout.FOLDERS["run"]
        if self._plan is None or any(path.name.startswith(f"{record.key}-repeat") for path in runs.glob("*")):
            return
        alone = {test.test for test in self._plan.tests if test.run == record.key and test.repeats == 1}
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
        own = [event for event in events if event.name == record.name]
        finished, ended = [event for event in own if event.event == "finished"], record.timings.ended
        path = self._folder / record.within_session
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
            yield from self._of_whole_journal(record, events, {event.event for event in own})

    def _of_whole_journal(self, record: Record, events: Sequence[JournalEvent], own: Collection[str]) -> Iterator[str]:
        launched = isinstance(record, RunRecord) and record.job_id is not None
        due = ["submitting", "submitted", "finished"] if launched else ["finished"]
        missing = [] if events[0].event == "began" else ["began"]
        for line in (*missing, *(event for event in due if event not in own)):
            yield f"{layout.JOURNAL}: it lacks the line `{line}` of this {record.about}"
        verdicts = {event.name: event.verdict for event in events if event.event == "judged"}
        for judgement in self._judged(record):
            if (kept := verdicts.get(judgement.test, "no verdict")) != judgement.verdict:
                yield f"{layout.JOURNAL}: it has {kept} for {judgement.test}, the record {judgement.verdict}"

    def _of_live(self, record: RunRecord) -> Iterator[str]:
        live = self._live
        task = next((task for task in live.runs if task.name == record.key), None) if live is not None else None
        if live is None or live.exit_code is None or task is None or task.state not in {"ended", "judged"}:
            return
        verdict = worst(judgement.verdict for judgement in self._judged(record))
        due = {
            "steps": record.recipe.steps, "step": max((step.step for step in record.steps), default=0),
            "started": record.timings.started, "took_s": record.took_s, "gpus": record.gpus, "nodes": record.nodes,
            "verdict": verdict if task.state == "judged" and self._plan is not None else task.verdict,
        }  # fmt: skip
        yield from _compare(layout.LIVE, {name: getattr(task, name) for name in due}, due)

    def _of_verdicts(self, record: Record) -> Iterator[str]:
        for judgement in record.judgements:
            if (row := self._verdicts.get(judgement.test)) is not None:
                due = {name: getattr(judgement, name) for name in _OF_VERDICT}
                due |= {"verdict": str(judgement.verdict)}
                yield from _compare(f"{layout.VERDICTS}: {judgement.test}", {name: row.get(name) for name in due}, due)

    def _of_launch(self, record: RunRecord) -> Iterator[str]:
        run = self._folder / layout.FOLDERS["run"] / record.key
        if record.replayed is not None or record.problem is not None:
            return
        try:
            yield from (*_of_early_end(run, record), *_of_job(run, record), *_of_task(run, record))
        except (LLMBenchError, ValidationError, OSError) as error:
            yield f"a file of its launch cannot be read: {str(error).partition(chr(10))[0]}"

    _CHECKS_OF_RUNS: ClassVar = (_of_itself, _of_plan, _of_live, _of_launch, _of_metrics)
    _CHECKS: ClassVar = (_of_system, _of_journal, _of_verdicts)


def _read_or_none(read: Callable[[], T]) -> T | None:
    with suppress(ConfigError, OSError):
        return read()
    return None


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
        due = {name: getattr(record, name) for name in ("session", "key", "token", "cluster", "job_id")}
        due |= {"submitted": record.timings.submitted}
        yield from _compare(layout.JOB, {name: getattr(job, name) for name in due}, due)


def _of_task(run: Path, record: RunRecord) -> Iterator[str]:
    if (task := read_task(run)) is None:
        return
    shape: dict[str, object] = {"nodes": task.nodes, "ranks": task.nodes * task.ranks_per_node}
    shape |= {"run_token": task.token} if record.run_token is not None else {}
    yield from _compare("the task of its launch", shape, {name: getattr(record, name) for name in shape})
    config = flatten(json.loads(json.dumps(task.config)) if isinstance(task, Task) else {})
    recipe = flatten(record.recipe.model_dump(mode="json", exclude={"references"}))
    shared = config.keys() & recipe.keys()  # an earlier version had fewer fields
    yield from _compare(layout.TASK, config, {name: recipe[name] for name in sorted(shared)})


def _compare(where: str, kept: Mapping[str, Any], due: Mapping[str, Any]) -> Iterator[str]:
    for name, value in due.items():
        if not same(kept[name], value):
            yield f"{where}: {name}: it has {kept[name]}, the record {value}"
