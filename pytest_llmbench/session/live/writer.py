"""Writing the live view of a session: `live.json` in its folder, by a thread of its own."""

import os
import socket
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from pytest_llmbench.cluster.runs import Declared, Plan, RunSpec, Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.core.files import PRIVATE, write_text
from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.schema import to_json
from pytest_llmbench.core.wire import layout
from pytest_llmbench.engines.base import get_engine, statistics_of
from pytest_llmbench.session.forecast import as_foreseen
from pytest_llmbench.session.live.snapshot import SIGN_S, LiveSnapshot, LiveTask, one_line, worst
from pytest_llmbench.session.record_store import RecordStore

_PERIOD_S = 1.0
# Most of one processor that the thread may use: snapshots of very large sessions come less often.
_SHARE = 0.03


class LiveWriter:
    """Writes the state of a session at most once a second. Errors in its thread leave runs alone.

    Attributes:
        latest: the last snapshot; None before the first.
    """

    def __init__(self, store: RecordStore, settings: Settings, session: Session, plan: Callable[[], Plan]) -> None:
        self.latest: LiveSnapshot | None = None
        self._store = store
        self._settings = settings
        self._session = session
        self._path = session.folder / layout.LIVE
        self._plan = plan
        self._began, self._host, self._count = time.time(), socket.gethostname(), 0
        # Kept from one snapshot to the next.
        self._planned: Plan | None = None
        self._tests: Mapping[tuple[str, str | None], Sequence[Declared]] = {}
        self._waiting: dict[str, LiveTask] = {}
        self._judged: dict[tuple[str, str], LiveTask] = {}
        self._written: LiveSnapshot | None = None
        self._has_failed = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="llmbench-live", daemon=True)

    def start(self) -> None:
        """Take the first snapshot, and go on in the background."""
        self._write()
        self._thread.start()

    def stop(self, word: str | None, exit_code: int | None) -> None:
        """Take the last snapshot, with the end of the session. Safe to call twice: the first end stands."""
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
        """Take a snapshot, and write it where it shows anything new, or where a sign of life is due."""
        try:
            self.latest = snapshot = self._take(word, exit_code)
            last = self._written
            over = snapshot.word is not None or snapshot.exit_code is not None
            if last is None or over or snapshot.at - last.at >= SIGN_S or snapshot.tasks != last.tasks:
                write_text(self._path, to_json(snapshot, exclude_defaults=True), mode=PRIVATE)
                self._written = snapshot
        except Exception as error:  # noqa: BLE001 - a border: runs and verdicts need no snapshot
            if not self._has_failed:
                self._has_failed = True
                reason = str(error) if isinstance(error, OSError) else traceback.format_exc()
                self._store.notes.append(f"{self._path} is not kept up to date: {reason}")

    def _take(self, word: str | None, exit_code: int | None) -> LiveSnapshot:
        planned = self._plan()
        if planned is not self._planned:
            self._take_on(planned)
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
                name=run.key, steps=run.recipe.steps, gpus=topology.gpus, nodes=topology.nodes,
                bound=self._bound_of(run),
            )  # fmt: skip

    def _bound_of(self, run: RunSpec) -> str:
        """The first bound on the speed of a run by its tests; empty without one for this machine."""
        names = {test.reference for test in self._tests.get(("run", run.series), ())}
        for reference in (reference for reference in run.recipe.references if reference.name in names):
            of_speed = statistics_of(get_engine(run.recipe.engine))[reference.statistic].of_speed
            if of_speed and (here := as_foreseen(reference, run.recipe, self._settings)) is not None:
                return here.asked
        return ""

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
        summary = self._store.runs.summaries.get(run.key)
        if summary is None:
            waiting = self._waiting[run.key]
            return self._store.tasks.get(run.key, waiting).model_copy(update={"bound": waiting.bound})
        problem = summary.problem
        task = LiveTask(
            name=run.key, state="ended", detail=one_line(f"{problem.kind}: {problem.message}") if problem else "",
            step=summary.step, steps=run.recipe.steps, started=summary.started, took_s=summary.took_s,
            gpus=summary.gpus, nodes=summary.nodes, hosts=summary.hosts, bound=self._waiting[run.key].bound,
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
