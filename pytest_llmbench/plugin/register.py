"""The objects that a process registers: a worker waits, every other process owns the runs."""

import pytest

from pytest_llmbench.cluster.runs import Session
from pytest_llmbench.plugin import lending, options, xdist
from pytest_llmbench.plugin.bench import KEY, Bench, bench_of
from pytest_llmbench.plugin.collection import feasible, selection
from pytest_llmbench.plugin.early import Early, EarlyController
from pytest_llmbench.plugin.options import options_of, usage_errors
from pytest_llmbench.plugin.ours import is_distributed
from pytest_llmbench.plugin.output import reports
from pytest_llmbench.plugin.output.progress import LiveLine
from pytest_llmbench.plugin.output.results import Results
from pytest_llmbench.plugin.supervisor import Supervisor
from pytest_llmbench.plugin.verdict.calls import TestCalls
from pytest_llmbench.plugin.verdict.requirements import Requirements
from pytest_llmbench.plugin.verdict.unfinished import Reports


def register(config: pytest.Config, early: Early | None, waited: EarlyController | None, *, lends: bool) -> None:
    """Register what this process needs; whatever is costly waits until a test asks for a run.

    A worker of xdist has no `early` parts, and only a controller that begins late `waited`. If a session `lends`,
    conftest files and plugins may bring engines and checks.
    """
    with usage_errors():
        if lends:
            lending.lend(config)
        given = xdist.session_of_worker(config) if early is None else Session(id=early.id, folder=early.folder)
        config.stash[KEY] = bench = Bench(config, options_of(config), given)
        requirements = Requirements(config, bench.options.require)
        manager = config.pluginmanager
        manager.register(requirements, "llmbench-requirements")
        if early is None:
            manager.register(xdist.Worker(bench), "llmbench-worker")
        else:
            _register_owner(bench, requirements, early, config, waited)
    manager.register(TestCalls(bench), "llmbench-calls")
    manager.register(feasible, "llmbench-feasibility")
    manager.register(selection, "llmbench-selection")
    manager.register(reports, "llmbench-benchmark-json")


def refuse(config: pytest.Config) -> None:
    """Refuse illegal options before anything is collected.

    Raises UsageError if an option is illegal, or the session to resume is missing.
    """
    with usage_errors():
        if options.is_given(config):
            bench_of(config).check()
        if not options.plan_only(config):
            bench_of(config).take_over()


def _register_owner(
    bench: Bench, requirements: Requirements, early: Early, config: pytest.Config, waited: EarlyController | None
) -> None:
    manager, progress, interruption = config.pluginmanager, LiveLine(config), early.interruption
    interruption.take_signals(lambda _by: None)  # noted while tests are collected: the XML has them all
    manager.register(reports := Reports(interruption), "llmbench-unfinished")
    early.junit.begin(bench.session.folder)
    results = Results(config, bench, progress, early.junit, reports, requirements)
    supervisor = Supervisor(config, bench, progress, interruption, results)
    manager.register(results, "llmbench-reports")
    manager.register(supervisor, "llmbench-supervisor")
    if is_distributed(config):
        controller = xdist.Controller(config, bench, supervisor, progress, interruption)
        manager.register(controller, "llmbench-controller")
        if waited is not None and waited.session is not None:
            supervisor.pytest_runtestloop(waited.session)
            if not waited.over:
                controller.pytest_runtestloop(waited.session)
