"""Making the picture of a session: its plan, how the runner shows what is unfinished, its records and verdicts."""

import os
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Mapping

from pytest_llmbench.cluster.runs import Plan, RunSpec, Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.session.active import RunView
from pytest_llmbench.session.kept_runs import Glance
from pytest_llmbench.session.live.projection import Projector
from pytest_llmbench.session.live.snapshot import MOST_CHARACTERS, LiveSnapshot, LiveTask, worst
from pytest_llmbench.session.record_store import RecordStore

_Tests = Mapping[tuple[str, str], list[str]]


class Pictures:
    """Takes pictures of one session, and keeps the parts that have not changed since the last one."""

    def __init__(self, store: RecordStore, settings: Settings, session: Session, plan: Callable[[], Plan]) -> None:
        self._store = store
        self._settings = settings
        self._session = session
        self._plan = plan
        self._began = time.time()
        self._host = socket.gethostname()
        self._count = 0
        self._planned: Plan | None = None
        self._tests: _Tests = {}
        self._asked: dict[str, list[str]] = {}
        self._final: dict[tuple[str, str], LiveTask] = {}
        self._unfinished: dict[str, tuple[object, LiveTask]] = {}
        self.projector = Projector(settings, lambda series: self._asked.get(series, []))

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
            state = "checking" if checking and record is None else "waiting"
            checking = checking and record is not None  # they are made one after the other, in this order
            tasks.append(self._final.get(("check", name)) or self._check(name, record, state == "checking"))
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
        asked: dict[str, list[str]] = defaultdict(list)
        for test in planned.tests:
            if test.run is not None:
                tests["run", test.run].append(test.test)
                if test.reference is not None:
                    asked[test.run].append(test.reference)
            if test.check is not None:
                tests["check", test.check].append(test.test)
        self._planned, self._tests, self._asked = planned, tests, asked

    def _check(self, name: str, record: HealthRecord | None, checking: bool) -> LiveTask:
        if record is None:
            return LiveTask(name=name, about="check", state="checking" if checking else "waiting")
        began, ended = record.timings.started, record.timings.ended
        task = LiveTask(
            name=name, about="check", state="ended", detail=_short(record.report.problem or record.report.skip or ""),
            started=began, took_s=ended - began if began is not None and ended is not None else None,
            nodes=max(1, len(record.hosts)),
        )  # fmt: skip
        return self._judged(task, name)

    def _run(self, run: RunSpec, made: Glance | None, view: RunView | None) -> LiveTask:
        if made is not None:
            self._unfinished.pop(run.key, None)
            self.projector.forget(run.key)
            problem = made.problem
            task = LiveTask(
                name=run.key, state="ended", detail=_short(f"{problem.kind}: {problem.message}") if problem else "",
                step=made.step, steps=run.recipe.steps, started=made.started, took_s=made.took_s, gpus=made.gpus,
                nodes=made.nodes,
            )  # fmt: skip
            return self._judged(task, run.series)
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

    def _judged(self, task: LiveTask, subject: str) -> LiveTask:
        """A task that has its record, with the worst verdict of its tests, if all of them have theirs."""
        verdicts = [self._store.verdicts.get(test) for test in self._tests.get((task.about, subject), ())]
        if not verdicts or None in verdicts:
            return task
        task = task.model_copy(
            update={"state": "judged", "verdict": worst(each for each in verdicts if each is not None)}
        )
        self._final[task.about, task.name] = task
        return task


def _short(text: str) -> str:
    """A reason in one line that is not too long."""
    line = " ".join(text.split())
    return line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 1]}…"
