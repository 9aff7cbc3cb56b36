"""pytest-xdist: the controller owns the runs, the workers only wait for their records.

Only the workers collect the tests, so the first one that has collected writes the plan to the session's folder, and
the controller starts it.
"""

import threading
import time
import traceback
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.cluster.heartbeat import read_stop, write_stop
from pytest_llmbench.cluster.runs import Plan, Session
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.files import write_text
from pytest_llmbench.core.record.records import write_model
from pytest_llmbench.core.wire import layout
from pytest_llmbench.plugin.bench import Bench
from pytest_llmbench.plugin.collection.checks import check_names
from pytest_llmbench.plugin.interruption import Interruption
from pytest_llmbench.plugin.ours import WORKER_INPUT, send_session
from pytest_llmbench.plugin.output import terminal
from pytest_llmbench.plugin.output.progress import LiveLine
from pytest_llmbench.plugin.supervisor import Supervisor
from pytest_llmbench.plugin.verdict.outcome import declared_tests
from pytest_llmbench.session.record_store import AnyRecord

_LOOK_S = 0.2
# After a signal, the tests are awaited for so long.
_COLLECTED_S = 10.0


def session_of_worker(config: pytest.Config) -> Session:
    """The session of a worker, as its controller sent it."""
    sent = config.workerinput[WORKER_INPUT]  # type: ignore[attr-defined]  # xdist sets it
    return Session(id=sent["id"], folder=Path(sent["folder"]))


class FileWaiter:
    """Waits in an xdist worker for the controller's runner, which writes every record to disk."""

    def __init__(self, session: Session, ttl_s: float) -> None:
        self._session = session
        self._ttl_s = ttl_s

    def repeat(self, series: str, number: int, look: int) -> None:
        """Ask the controller."""
        write_text(self._session.folder / layout.REPEATS / series, f"{number} {look}")

    def wait(self, kind: type[AnyRecord], name: str) -> AnyRecord:
        """Block until the record is on disk; fail the test if the controller dies or gives up before."""
        path, what = self._session.folder_of(kind.about, name) / layout.RECORD, f"{kind.about} {name}"
        seen, moved = "", time.monotonic()
        while not path.exists():
            reason = read_stop(self._session.folder)
            if reason is not None and not path.exists():  # records are written before the end is noted
                pytest.fail(f"{what}: the controller left no record: {reason}", pytrace=False)
            time.sleep(_LOOK_S)
            sign = self._sign()
            if sign != seen:
                seen, moved = sign, time.monotonic()
            elif time.monotonic() - moved > 2 * self._ttl_s:
                pytest.fail(
                    f"{what}: the controller gave no sign of life for {2 * self._ttl_s:g} s and left no record in "
                    f"{self._session.folder}: it died, or the disk is full", pytrace=False,
                )  # fmt: skip
        try:
            return kind.read(path)
        except ConfigError as error:
            pytest.fail(str(error), pytrace=False)

    def _sign(self) -> str:
        try:
            return (self._session.folder / layout.OWNER).read_text(encoding="ascii")
        except OSError:
            return ""


class Worker:
    """In a worker: write down which runs the tests need, then wait for their records on disk."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Write the plan, which is the same in every worker, because all collect the same tests.

        In a refused session, the list of tests is emptied for xdist.
        """
        try:
            self._bench.plan(declared_tests(session.items), check_names(session.items))
            if not self._bench.planned.empty:
                self._bench.waiter = FileWaiter(self._bench.session, self._bench.settings.heartbeat_timeout)
        except ConfigError as error:
            self._bench.planned = Plan(runs=(), refused=str(error))
            session.items.clear()
        if not self._bench.planned.empty or self._bench.planned.refused:
            write_model(self._bench.session.folder / layout.WORKERS_PLAN, self._bench.planned)


class Controller:
    """In the controller: send workers the session, start the runs when their plan is there, show progress."""

    def __init__(
        self,
        config: pytest.Config,
        bench: Bench,
        supervisor: Supervisor,
        progress: LiveLine,
        interruption: Interruption,
    ) -> None:
        self._config = config
        self._bench = bench
        self._supervisor = supervisor
        self._progress = progress
        self._interruption = interruption
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="llmbench-controller", daemon=True)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Send a worker its session."""
        send_session(node, self._bench.session.id, self._bench.session.folder)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Wait for the plan, and for signals, in addition to xdist's own loop."""
        self._supervisor.take_signals(session)
        threading.Thread(target=self._end_the_loop, name="llmbench-signals", daemon=True).start()
        self._thread.start()

    @pytest.hookimpl(tryfirst=True, wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None]:
        """Stop waiting, before anyone else acts: the supervisor, registered earlier and so called later, ends the runs.

        The session may end while they are only being started, and only processes that have started can be ended.
        """
        self._over.set()
        self._interruption.ignore_all()
        self._supervisor.begin_no_more()  # in the debug cluster, starting a run is running it
        if self._thread.is_alive():
            self._thread.join()
        self._bench.planned = self._plan or self._bench.planned  # the session may end before it is started
        if self._bench.planned.refused is not None:
            self._progress.note(self._bench.planned.refused)
            session.exitstatus = pytest.ExitCode.USAGE_ERROR
        return (yield)

    @property
    def _plan(self) -> Plan | None:
        """Tasks that the workers' tests wait for; None until one of them has collected."""
        path = self._bench.session.folder / layout.WORKERS_PLAN
        return Plan.model_validate_json(path.read_bytes()) if path.exists() else None

    def _end_the_loop(self) -> None:
        """End xdist's loop after the first signal, between two of its events, outside of all hooks.

        The first worker that has collected tells which tests there are.
        """
        self._interruption.received.wait()
        session, deadline = self._config.pluginmanager.get_plugin("dsession"), time.monotonic() + _COLLECTED_S
        while self._plan is None and time.monotonic() < deadline and not self._over.wait(_LOOK_S):
            if getattr(getattr(session, "sched", None), "collection_is_completed", False):
                break  # without tests of ours
        if session is not None:
            session.worker_llmbench_signal = self._interruption.interrupt
            session.queue.put(("llmbench_signal", {}))

    def _give_up(self, reason: str) -> None:
        """End the session, and the waiting of its workers for records that will be missing."""
        self._progress.note(reason)
        session = self._config.pluginmanager.get_plugin("dsession")
        if session is not None:
            session.shouldstop = reason  # first: the stop ends a waiting test at once, and it shall be the last one
        write_stop(self._bench.session.folder, reason)

    def _take_on_repeats(self) -> None:
        for path in (self._bench.session.folder / layout.REPEATS).glob("[!.]*"):
            number, look = path.read_text(encoding="utf-8").split()
            self._supervisor.repeat(path.name, int(number), int(look))

    def _follow(self) -> None:
        while (plan := self._plan) is None:
            if self._over.wait(_LOOK_S):
                return
        if plan.refused is not None or self._interruption.by is not None:
            return
        try:
            self._bench.planned = plan
            for line in terminal.header(self._bench):
                self._progress.print(line)
            self._supervisor.start_runs()
        except ConfigError as error:
            self._give_up(str(error))
            return
        except Exception as error:  # noqa: BLE001 - the thread's border: the workers wait for what will never come
            self._progress.print(traceback.format_exc())
            self._give_up(f"the runs could not be started: {type(error).__name__}: {error}")
            return
        store = self._supervisor.results.store
        while store is not None and not self._over.wait(_LOOK_S):
            self._take_on_repeats()
            self._progress.take(store.notes)
            if store.unsaved:  # workers wait for its file
                self._give_up(next(iter(store.unsaved.values())))
                return
            self._progress.show(self._supervisor.latest)
