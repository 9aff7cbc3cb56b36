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

from pytest_llmbench.cluster.runs import Plan, RunSpec, Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.core.files import PRIVATE, write_text
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.records import Metric
from pytest_llmbench.core.record.series import StepSeries
from pytest_llmbench.core.wire import layout
from pytest_llmbench.engines.base import statistics_of
from pytest_llmbench.judging.interval.decide import Decision, decide
from pytest_llmbench.judging.sanity import first_problem
from pytest_llmbench.judging.statistics import measure
from pytest_llmbench.session.early import gather_evidence, references_for
from pytest_llmbench.session.following import RunView
from pytest_llmbench.session.live.snapshot import MOST_CHARACTERS, SIGN_S, LiveSnapshot, LiveTask, Projected, worst
from pytest_llmbench.session.record_store import Glance, RecordStore
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
        self._planned: Plan | None = None
        self._began, self._host, self._count = time.time(), socket.gethostname(), 0
        # Kept from one picture to the next.
        self._tests: Mapping[tuple[str, str], list[str]] = {}
        self._references: dict[str, list[str]] = {}
        self._final: dict[tuple[str, str], LiveTask] = {}
        self._unfinished: dict[str, tuple[object, LiveTask]] = {}
        self.projector = Projector(settings, lambda series: self._references.get(series, []))
        self._written: LiveSnapshot | None = None
        self._has_failed = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="llmbench-live", daemon=True)

    def start(self) -> None:
        """Take the first picture, and go on in the background."""
        self.write()
        self._thread.start()

    def stop(self, word: str | None, exit_code: int | None) -> None:
        """Take the last picture, with the end of the session. Safe to call twice: the first end stands."""
        if self._over.is_set():
            return
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        self.write(word, exit_code)

    def write(self, word: str | None = None, exit_code: int | None = None) -> None:
        """Take a picture, and write it where it shows anything new, or where a sign of life is due."""
        try:
            self.latest = picture = self.take(word, exit_code)
            last = self._written
            over = picture.word is not None or picture.exit_code is not None
            if last is None or over or picture.at - last.at >= SIGN_S or picture.tasks != last.tasks:
                write_text(self._path, picture.model_dump_json(exclude_defaults=True), mode=PRIVATE)
                self._written = picture
        except Exception as error:  # noqa: BLE001 - a border: runs and verdicts need no picture
            if not self._has_failed:
                self._has_failed = True
                reason = str(error) if isinstance(error, OSError) else traceback.format_exc()
                self._store.notes.append(f"{self._path} is not kept up to date: {reason}")

    def _work(self) -> None:
        pause_s = _PERIOD_S
        while not self._over.wait(pause_s):
            began = time.thread_time()
            self.write()
            pause_s = max(_PERIOD_S, (time.thread_time() - began) / _SHARE)

    def take(self, word: str | None = None, exit_code: int | None = None) -> LiveSnapshot:
        """Take a picture; the last of a session has its verdict and exit code."""
        planned, views = self._plan(), self._store.views
        if planned is not self._planned:
            self._take_on(planned)
        if word is None:
            self.projector.look(views)
        by_key = {view.key: view for view in views}
        checks, runs = self._store.checks, self._store.runs.glances
        checking = any(view.state == "checking" for view in views)
        tasks = []
        for name in planned.checks:
            record = checks.get(name)
            tasks.append(self._final.get(("check", name)) or self._check(name, record, checking=checking))
            checking = checking and record is not None  # they are made one after the other, in this order
        for run in planned.runs:
            final = self._final.get(("run", run.key))
            tasks.append(final or self._run(run, runs.get(run.key), by_key.get(run.key)))
        self._count += 1
        # Built from what is valid already, thousands of times.
        return LiveSnapshot.model_construct(
            session=self._session.id, host=self._host, pid=os.getpid(), began=self._began, at=time.time(),
            count=self._count - 1, word=word, exit_code=exit_code, tasks=tuple(tasks),
        )  # fmt: skip

    def _take_on(self, planned: Plan) -> None:
        tests: dict[tuple[str, str], list[str]] = defaultdict(list)
        references: dict[str, list[str]] = defaultdict(list)
        for test in planned.tests:
            if test.run is not None:
                tests["run", test.run].append(test.test)
                if test.reference is not None:
                    references[test.run].append(test.reference)
            if test.check is not None:
                tests["check", test.check].append(test.test)
        self._planned, self._tests, self._references = planned, tests, references

    def _check(self, name: str, record: HealthRecord | None, *, checking: bool) -> LiveTask:
        if record is None:
            return LiveTask(name=name, about="check", state="checking" if checking else "waiting")
        began, ended = record.timings.started, record.timings.ended
        task = LiveTask(
            name=name, about="check", state="ended", detail=_short(record.report.problem or record.report.skip or ""),
            started=began, took_s=ended - began if began is not None and ended is not None else None,
            nodes=max(1, len(record.hosts)),
        )  # fmt: skip
        return self._add_verdict(task, name)

    def _run(self, run: RunSpec, glance: Glance | None, view: RunView | None) -> LiveTask:
        if glance is not None:
            self._unfinished.pop(run.key, None)
            self.projector.forget(run.key)
            problem = glance.problem
            task = LiveTask(
                name=run.key, state="ended", detail=_short(f"{problem.kind}: {problem.message}") if problem else "",
                step=glance.step, steps=run.recipe.steps, started=glance.started, took_s=glance.took_s,
                gpus=glance.gpus, nodes=glance.nodes,
            )  # fmt: skip
            return self._add_verdict(task, run.series)
        known = (view, projected := self.projector.get(run.key))
        kept = self._unfinished.get(run.key)
        if kept is not None and kept[0] == known:
            return kept[1]
        topology = self._settings.topology(run.recipe)
        task = LiveTask(name=run.key, steps=run.recipe.steps, gpus=topology.gpus, nodes=topology.nodes)
        if view is not None:
            task = task.model_copy(
                update={
                    "state": view.state, "detail": _short(view.detail), "starts": view.starts, "step": view.step,
                    "words_per_s": view.words_per_s, "eta_s": view.eta_s, "started": view.started,
                    "projected": projected,
                }
            )  # fmt: skip
        self._unfinished[run.key] = known, task
        return task

    def _add_verdict(self, task: LiveTask, subject: str) -> LiveTask:
        """Add the worst verdict of its tests to a task that has its record, if all of them have theirs."""
        verdicts = [self._store.verdicts.get(test) for test in self._tests.get((task.about, subject), ())]
        if not verdicts or None in verdicts:
            return task
        verdict = worst(verdict for verdict in verdicts if verdict is not None)
        task = task.model_copy(update={"state": "judged", "verdict": verdict})
        self._final[task.about, task.name] = task
        return task


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 1]}…"


@dataclass
class Projector:
    """Projects the runs under way, one at a time, and keeps the last projection of each.

    Attributes:
        references: gives the names of the references of a run's tests, by the key of its series.
    """

    settings: Settings
    references: Callable[[str], Sequence[str]]
    clock: Callable[[], float] = time.monotonic
    _known: dict[str, Projected] = field(default_factory=dict)
    _next_step: dict[str, int] = field(default_factory=dict)
    _free_at: float = 0.0

    def get(self, key: str) -> Projected | None:
        """The last projection of a run; None before the first."""
        return self._known.get(key)

    def forget(self, key: str) -> None:
        """Forget a run that is over, or begins again."""
        self._known.pop(key, None)
        self._next_step.pop(key, None)

    def look(self, views: Sequence[RunView]) -> None:
        """Project the run that has waited longest for it, if there is time for one."""
        began = self.clock()
        if began < self._free_at:
            return
        running = [view for view in views if view.state == "running" and view.run is not None]
        ready = [view for view in running if view.step >= self._next_step.get(view.key, 1)]
        view = min(ready, key=lambda view: self._next_step.get(view.key, 1), default=None)
        if view is None or view.run is None:
            return
        series = view.run.engine.read(view.run.place.folder, view.run.spec.recipe)
        self._known[view.key] = project(view.run, self.references(view.run.spec.series), self.settings, series)
        self._next_step[view.key] = max(view.step + 1, math.ceil(_MORE_STEPS * view.step))
        ended = self.clock()
        self._free_at = ended + (ended - began) / _PROJECTIONS_SHARE


def project(run: PreparedRun, names: Sequence[str], settings: Settings, series: StepSeries) -> Projected:
    """Judge a run under way by its steps so far, with the rule and the references that will judge it at its end."""
    look = _whole_steps(series, run.topology.world_size)
    if look == 0:
        return Projected(why="no step of all ranks so far")
    evidence, measurement, early = gather_evidence(run, settings, series, look, (look,))
    known = statistics_of(run.engine)
    metrics = measure(measurement, known)
    references = [
        reference for reference in references_for(run, settings, evidence, names) if known[reference.statistic].of_speed
    ]
    if not references:
        shown = _make_projection(_USUAL, metrics[_USUAL], None, look) if _USUAL in metrics else Projected(steps=look)
        return shown.model_copy(update={"why": "its tests have no reference on speed for this machine"})
    problem = first_problem(evidence, over=False)
    projections: list[Projected] = []
    for reference in references:
        metric = metrics.get(reference.statistic)
        if metric is None or metric.sense is None or known[reference.statistic].needs_all_steps:
            shown = _make_projection(reference.statistic, metric, reference, look)
            shown = shown.model_copy(update={"why": f"{reference.statistic} is known when all steps are"})
            projections.append(shown)
            continue
        steady = measurement.steady
        decisions = [
            decide(metric, [steady], op, bound, reference.between, early.alpha, early) for op, bound in reference.bounds
        ]
        shown = _make_projection(reference.statistic, metric, reference, look, decisions)
        if steady is None or not steady.enough:
            # Far from the bound, `decide` works without an interval; later steps may be as far from these.
            few = "too few steps so far for an interval"
            shown = shown.model_copy(update={"verdict": "undecided", "low": None, "high": None, "why": few})
        if problem is not None:
            shown = shown.model_copy(update={"verdict": "undecided", "why": f"{problem.kind}: {problem.message}"})
        projections.append(shown)
    decisive = min(projections, key=lambda shown: ("FAIL", "undecided", "PASS").index(shown.verdict))
    if decisive.verdict == "PASS" and look >= run.spec.recipe.steps:
        return decisive.model_copy(update={"verdict": "undecided", "why": "all its steps are there, and it is judged"})
    return decisive


def _whole_steps(series: StepSeries, world_size: int) -> int:
    """Number of steps, from the first, that all ranks have logged."""
    whole = 0
    for step in series.steps:
        if step.ranks not in {None, world_size} or step.step < whole:
            break
        whole = step.step
    return whole


def _make_projection(
    statistic: str, metric: Metric | None, reference: Reference | None, look: int, decisions: Sequence[Decision] = ()
) -> Projected:
    shown = Projected(statistic=statistic, bound=reference.asked if reference is not None else "", steps=look)
    if metric is None:
        return shown
    first = decisions[0] if decisions else metric
    holds = [decision.holds for decision in decisions]
    verdict = "undecided"
    if False in holds:
        verdict = "FAIL"
    elif holds and None not in holds and not (first.low is None and first.high is None):
        verdict = "PASS"
    reason = next((decision.why for decision in decisions if decision.why), "")
    numbers = {"value": metric.value, "low": first.low, "high": first.high, "unit": metric.unit}
    return shown.model_copy(update={"verdict": verdict, "why": reason, **numbers})
