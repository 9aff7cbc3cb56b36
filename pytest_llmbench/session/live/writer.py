"""Writing the live view of a session: `live.json` in its folder, by a thread of its own."""

import math
import os
import socket
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_llmbench.cluster.runs import Declared, Plan, RunSpec, Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.core.files import PRIVATE, write_text
from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.series import StepSeries
from pytest_llmbench.core.schema import to_json
from pytest_llmbench.core.wire import layout
from pytest_llmbench.engines.base import statistics_of
from pytest_llmbench.judging.interval.decide import Decision
from pytest_llmbench.judging.sanity import first_problem
from pytest_llmbench.judging.statistics import measure
from pytest_llmbench.session.early import decide_bounds, gather_evidence, references_for
from pytest_llmbench.session.live.snapshot import (
    SIGN_S,
    Expectation,
    LiveSnapshot,
    LiveTask,
    Projected,
    one_line,
    worst,
)
from pytest_llmbench.session.record_store import RecordStore
from pytest_llmbench.session.script.prepared import PreparedRun

_PERIOD_S = 1.0
# Most of one processor that the thread may use: pictures of very large sessions come less often.
_SHARE = 0.03
# A projection reads all logs of a run. It is renewed after so many more steps, and all projections together take at
# most this share of the time.
_MORE_STEPS = 1.15
_PROJECTIONS_SHARE = 0.01
_USUAL = "throughput"


class LiveWriter:
    """Writes the state of a session at most once a second. Errors in its thread leave runs alone.

    Attributes:
        latest: the last picture; None before the first.
    """

    def __init__(self, store: RecordStore, settings: Settings, session: Session, plan: Callable[[], Plan]) -> None:
        self.latest: LiveSnapshot | None = None
        self._store = store
        self._settings = settings
        self._session = session
        self._path = session.folder / layout.LIVE
        self._plan = plan
        self._began, self._host, self._count = time.time(), socket.gethostname(), 0
        # Kept from one picture to the next.
        self._planned: Plan | None = None
        self._tests: Mapping[tuple[str, str | None], Sequence[Declared]] = {}
        self._waiting: dict[str, LiveTask] = {}
        self._judged: dict[tuple[str, str], LiveTask] = {}
        self._projector = Projector(settings, self._references_of)
        self._written: LiveSnapshot | None = None
        self._has_failed = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="llmbench-live", daemon=True)

    def start(self) -> None:
        """Take the first picture, and go on in the background."""
        self._write()
        self._thread.start()

    def stop(self, word: str | None, exit_code: int | None) -> None:
        """Take the last picture, with the end of the session. Safe to call twice: the first end stands."""
        if self._over.is_set():
            return
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        self._write(word, exit_code)

    def _work(self) -> None:
        pause_s = _PERIOD_S
        while not self._over.wait(pause_s):
            began = time.thread_time()
            self._write()
            pause_s = max(_PERIOD_S, (time.thread_time() - began) / _SHARE)

    def _write(self, word: str | None = None, exit_code: int | None = None) -> None:
        """Take a picture, and write it where it shows anything new, or where a sign of life is due."""
        try:
            self.latest = picture = self._take(word, exit_code)
            last = self._written
            over = picture.word is not None or picture.exit_code is not None
            if last is None or over or picture.at - last.at >= SIGN_S or picture.tasks != last.tasks:
                write_text(self._path, to_json(picture, exclude_defaults=True), mode=PRIVATE)
                self._written = picture
        except Exception as error:  # noqa: BLE001 - a border: runs and verdicts need no picture
            if not self._has_failed:
                self._has_failed = True
                reason = str(error) if isinstance(error, OSError) else traceback.format_exc()
                self._store.notes.append(f"{self._path} is not kept up to date: {reason}")

    def _take(self, word: str | None, exit_code: int | None) -> LiveSnapshot:
        planned = self._plan()
        if planned is not self._planned:
            self._take_on(planned)
        if word is None:
            self._projector.look(self._store.tasks, self._store.under_way)
        tasks, checking = [], self._store.checking
        for name in planned.checks:
            record = self._store.checks.get(name)
            tasks.append(self._check(name, record, checking=checking))
            checking = checking and record is not None  # they are made one after the other, in this order
        tasks += map(self._run, planned.runs)
        self._count += 1
        # Built from what is valid already, thousands of times.
        return LiveSnapshot.model_construct(
            session=self._session.id, host=self._host, pid=os.getpid(), began=self._began, at=time.time(),
            count=self._count - 1, word=word, exit_code=exit_code, tasks=tuple(tasks),
        )  # fmt: skip

    def _take_on(self, planned: Plan) -> None:
        tests: dict[tuple[str, str | None], list[Declared]] = defaultdict(list)
        for test in planned.tests:
            tests["run", test.run].append(test)
            tests["check", test.check].append(test)
        self._planned, self._tests = planned, tests
        for run in planned.runs:
            topology = self._settings.topology(run.recipe)
            self._waiting[run.key] = LiveTask(
                name=run.key, steps=run.recipe.steps, gpus=topology.gpus, nodes=topology.nodes
            )

    def _references_of(self, series: str) -> list[str]:
        return [test.reference for test in self._tests.get(("run", series), ()) if test.reference is not None]

    def _check(self, name: str, record: HealthRecord | None, *, checking: bool) -> LiveTask:
        if judged := self._judged.get(("check", name)):
            return judged
        if record is None:
            return LiveTask(name=name, about="check", state="checking" if checking else "waiting")
        began, ended = record.timings.started, record.timings.ended
        task = LiveTask(
            name=name, about="check", state="ended", detail=one_line(record.report.problem or record.report.skip or ""),
            started=began, took_s=ended - began if began is not None and ended is not None else None,
            nodes=max(1, len(record.hosts)),
        )  # fmt: skip
        return self._add_verdict(task, name)

    def _run(self, run: RunSpec) -> LiveTask:
        if judged := self._judged.get(("run", run.key)):
            return judged
        glance = self._store.runs.glances.get(run.key)
        if glance is None:
            task, projected = self._store.tasks.get(run.key, self._waiting[run.key]), self._projector.last.get(run.key)
            return task.model_copy(update={"projected": projected}) if projected is not None else task
        self._projector.forget(run.key)
        problem = glance.problem
        task = LiveTask(
            name=run.key, state="ended", detail=one_line(f"{problem.kind}: {problem.message}") if problem else "",
            step=glance.step, steps=run.recipe.steps, started=glance.started, took_s=glance.took_s,
            gpus=glance.gpus, nodes=glance.nodes,
        )  # fmt: skip
        return self._add_verdict(task, run.series)

    def _add_verdict(self, task: LiveTask, subject: str) -> LiveTask:
        """Add the worst verdict of its tests to a task that has its record, if all of them have theirs."""
        verdicts = [self._store.verdicts.get(test.test) for test in self._tests.get((task.about, subject), ())]
        if not verdicts or None in verdicts:
            return task
        verdict = worst(verdict for verdict in verdicts if verdict is not None)
        task = self._judged[task.about, task.name] = task.model_copy(update={"state": "judged", "verdict": verdict})
        return task


@dataclass
class Projector:
    """Projects the runs under way, one at a time, and keeps the last projection of each."""

    settings: Settings
    # Gives the names of the references of a run's tests, by the key of its series
    references: Callable[[str], Sequence[str]]
    clock: Callable[[], float] = time.monotonic
    last: dict[str, Projected] = field(default_factory=dict)  # the last projection of each run, by key
    _next_step: dict[str, int] = field(default_factory=dict)
    _free_at: float = 0.0

    def forget(self, key: str) -> None:
        """Forget a run that is over, or begins again."""
        self.last.pop(key, None)
        self._next_step.pop(key, None)

    def look(self, tasks: Mapping[str, LiveTask], runs: Mapping[str, PreparedRun]) -> None:
        """Project the run that has waited longest for it, if there is time for one."""
        began = self.clock()
        if began < self._free_at:
            return
        due = {key: self._next_step.get(key, 1) for key, task in tasks.items() if task.state == "running"}
        key = min((key for key, step in due.items() if tasks[key].step >= step), key=lambda key: due[key], default=None)
        if key is None or key not in runs:
            return
        run, step = runs[key], tasks[key].step
        series = run.engine.read(run.place.folder, run.spec.recipe)
        self.last[key] = project(run, self.references(run.spec.series), self.settings, series)
        self._next_step[key] = max(step + 1, math.ceil(_MORE_STEPS * step))
        ended = self.clock()
        self._free_at = ended + (ended - began) / _PROJECTIONS_SHARE


def project(run: PreparedRun, names: Sequence[str], settings: Settings, series: StepSeries) -> Projected:
    """Judge a run under way by its steps so far, with the rule and the references that will judge it at its end."""
    look = _whole_steps(series, run.topology.world_size)
    if look == 0:
        return Projected(why="no step of all ranks so far")
    evidence, measurement, early = gather_evidence(run, settings, series, look, (look,))
    known, steady = statistics_of(run.engine), measurement.steady
    metrics, problem = measure(measurement, known), first_problem(evidence, over=False)
    projections: list[Projected] = []
    for reference in references_for(run, settings, evidence, names):
        statistic, metric = reference.statistic, metrics.get(reference.statistic)
        if not known[statistic].of_speed:
            continue
        decisions: list[Decision] = []
        why = f"{statistic} is known when all steps are"
        if metric is not None and metric.sense is not None and not known[statistic].needs_all_steps:
            decisions = decide_bounds(reference, metric, measurement, early)
            why = next((decision.why for decision in decisions if decision.why), "")
        shown = decisions[0] if decisions else metric
        low, high = (shown.low, shown.high) if shown is not None else (None, None)
        verdict = _expect([decision.holds for decision in decisions], has_interval=(low, high) != (None, None))
        if steady is None or not steady.enough:
            # Far from the bound, `decide` works without an interval; later steps may be as far from these.
            verdict, low, high, why = "undecided", None, None, "too few steps so far for an interval"
        if problem is not None:
            verdict, why = "undecided", f"{problem.kind}: {problem.message}"
        if verdict == "PASS" and look >= run.spec.recipe.steps:
            verdict, why = "undecided", "all its steps are there, and it is judged"
        value, unit = (metric.value, metric.unit) if metric is not None else (None, "")
        projections.append(
            Projected(
                statistic=statistic, value=value, unit=unit, low=low, high=high, bound=reference.asked, steps=look,
                verdict=verdict, why=why,
            )
        )  # fmt: skip
    if projections:
        return min(projections, key=lambda shown: ("FAIL", "undecided", "PASS").index(shown.verdict))
    usual, why = metrics.get(_USUAL), "its tests have no reference on speed for this machine"
    if usual is None:
        return Projected(steps=look, why=why)
    return Projected(
        statistic=_USUAL, value=usual.value, low=usual.low, high=usual.high, unit=usual.unit, steps=look, why=why
    )


def _expect(holds: Sequence[bool | None], *, has_interval: bool) -> Expectation:
    if False in holds:
        return "FAIL"
    return "PASS" if holds and None not in holds and has_interval else "undecided"


def _whole_steps(series: StepSeries, world_size: int) -> int:
    """Number of steps, from the first, that all ranks have logged."""
    whole = 0
    for step in series.steps:
        if step.ranks not in {None, world_size} or step.step < whole:
            break
        whole = step.step
    return whole
