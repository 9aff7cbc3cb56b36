"""The beginning of a session of ours, where no test of ours is seen by the process or several sessions are in it."""

import sys

import pytest

from pytest_llmbench.cluster.runs import Plan
from pytest_llmbench.core.record.records import write_model
from pytest_llmbench.core.wire import layout
from pytest_llmbench.plugin.bench import bench_of
from pytest_llmbench.plugin.early import EarlyController
from pytest_llmbench.plugin.ours import is_begun


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
