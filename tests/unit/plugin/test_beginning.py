"""The beginning of a session of ours, and waiting for records in an xdist worker: on files, and not for ever."""

import sys
import threading
from pathlib import Path

import pytest

from pytest_llmbench.cluster.heartbeat import write_stop
from pytest_llmbench.cluster.runs import Plan, Session
from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.records import RunRecord, write_model
from pytest_llmbench.core.wire import layout
from pytest_llmbench.plugin.bench import bench_of
from pytest_llmbench.plugin.early import EarlyController
from pytest_llmbench.plugin.ours import is_begun
from pytest_llmbench.plugin.xdist import FileWaiter
from tests.support.shipped import shipped_recipes


@pytest.mark.parametrize("planned", [True, False])
def test_what_was_planned_begins_at_the_end(pytester: pytest.Pytester, *, planned: bool) -> None:
    """Xdist reports no collection after `-x`; tests that a worker has planned by then still need verdicts."""
    config = pytester.parseconfigure("--dist=load")
    (waiting,) = [plugin for plugin in config.pluginmanager.get_plugins() if isinstance(plugin, EarlyController)]
    early = waiting.early
    if planned:
        write_model(early.folder / layout.WORKERS_PLAN, Plan(runs=(), checks=("limits",)))
    loop = waiting.pytest_runtestloop(pytest.Session.from_config(config))
    next(loop)
    assert not is_begun(config)
    with pytest.raises(KeyboardInterrupt):
        loop.throw(KeyboardInterrupt())
    assert is_begun(config) is planned
    if planned:
        assert (bench_of(config).session.id, bench_of(config).session.folder) == (early.id, early.folder)


def test_sessions_in_one_process_share_modules(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pytester removes modules that a session imported first, so they are imported before."""
    name = "pytest_llmbench.plugin.register"
    for plugin, is_there in (("no:pytester", False), ("pytester", True)):
        monkeypatch.delitem(sys.modules, name, raising=False)
        pytester.parseconfigure("-p", plugin)
        assert (name in sys.modules) is is_there


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(id="20261121-120000-abcdef", folder=tmp_path / "20261121-120000-abcdef")


def record(session: Session) -> RunRecord:
    return RunRecord(
        session=session.id, key="opt125m", token=session.token, recipe=shipped_recipes()["opt125m"],
        system="local", cluster="local", allocation="run", nodes=1, ranks=2, gpus=0,
        folder=str(session.run_folder("opt125m")),
    )  # fmt: skip


def test_a_worker_waits_until_the_record_is_there(session: Session) -> None:
    written = record(session)
    timer = threading.Timer(0.5, write_model, (written.path, written))
    timer.start()
    assert FileWaiter(session, 60.0).wait(RunRecord, "opt125m") == written
    timer.join()


def test_a_dead_controller_is_noticed(session: Session) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"run opt125m: the controller gave no sign of life for 0.6 s"):
        FileWaiter(session, 0.3).wait(RunRecord, "opt125m")


def test_a_living_controller_is_waited_for(session: Session) -> None:
    session.folder.mkdir()
    over = threading.Event()

    def beat() -> None:
        count = 0
        while not over.wait(0.1):
            count += 1
            (session.folder / "owner").write_text(f"{count}\n")

    thread = threading.Thread(target=beat)
    thread.start()
    written = record(session)
    timer = threading.Timer(1.5, write_model, (written.path, written))
    timer.start()
    assert FileWaiter(session, 0.3).wait(RunRecord, "opt125m") == written
    over.set()
    thread.join()
    timer.join()


def test_a_controller_that_gives_up_is_not_waited_for(session: Session) -> None:
    """The test says why there is no record; one that was written before the end was told is still read."""
    write_stop(session.folder, "the disk is on fire")
    with pytest.raises(pytest.fail.Exception, match=r"run opt125m: the controller left no record: the disk is on fire"):
        FileWaiter(session, 0.3).wait(RunRecord, "opt125m")
    with pytest.raises(pytest.fail.Exception, match=r"check matmul: the controller left no record: the disk is on"):
        FileWaiter(session, 0.3).wait(HealthRecord, "matmul")
    written = record(session)
    write_model(written.path, written)
    assert FileWaiter(session, 0.3).wait(RunRecord, "opt125m") == written


def test_a_record_that_is_none_fails_its_tests(session: Session) -> None:
    path = session.run_folder("opt125m") / "record.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"schema_version": 99}')
    with pytest.raises(pytest.fail.Exception, match=r"record\.json: no run record of schema version 1"):
        FileWaiter(session, 0.3).wait(RunRecord, "opt125m")
