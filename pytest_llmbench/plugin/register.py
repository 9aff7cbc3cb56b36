"""The objects that a process registers: a worker waits, every other process owns the runs."""

import pytest

from pytest_llmbench.cluster.runs import Session
from pytest_llmbench.plugin import lending, options, xdist
from pytest_llmbench.plugin.bench import KEY, Bench, bench_of
from pytest_llmbench.plugin.collection import feasible, selection
from pytest_llmbench.plugin.interruption import Interruption
from pytest_llmbench.plugin.missed import MissedEvents, MissedLoop
from pytest_llmbench.plugin.options import options_of, usage_errors
from pytest_llmbench.plugin.ours import is_distributed, is_worker
from pytest_llmbench.plugin.output import reports as benchmark_json
from pytest_llmbench.plugin.output.progress import LiveLine
from pytest_llmbench.plugin.output.results import Results, SafeReports
from pytest_llmbench.plugin.supervisor import Supervisor
from pytest_llmbench.plugin.verdict.requirements import Requirements
from pytest_llmbench.plugin.verdict.rerun import TestCalls
from pytest_llmbench.plugin.verdict.unfinished import Reports


def register(config: pytest.Config, missed: MissedEvents | None) -> None:
    """Register what this process needs; whatever is costly waits until a test asks for a run.

    Args:
        config: pytest's.
        missed: events before; None where the session begins while pytest is configured.
    """
    if missed is None:  # else conftest files of the rootdir lack such hooks, and those of other folders are left out
        with usage_errors():
            lending.lend(config)
    if is_worker(config):
        _register_worker(config)
    else:
        _register_owner(config, missed)
    manager = config.pluginmanager
    manager.register(TestCalls(bench_of(config)), "llmbench-calls")
    manager.register(feasible, "llmbench-feasibility")
    manager.register(selection, "llmbench-selection")
    manager.register(benchmark_json, "llmbench-benchmark-json")


def refuse(config: pytest.Config) -> None:
    """Refuse illegal options before anything is collected.

    Raises:
        UsageError: an option is illegal, or the session to resume is missing.
    """
    if is_worker(config):
        return
    with usage_errors():
        if options.is_given(config):
            bench_of(config).check()
        if not options.plan_only(config):
            bench_of(config).take_over()


def _register_worker(config: pytest.Config) -> None:
    config.stash[KEY] = bench = Bench(config, options_of(config), xdist.session_of_worker(config))
    config.pluginmanager.register(xdist.Worker(bench), "llmbench-worker")
    config.pluginmanager.register(Requirements(config, bench.options.require), "llmbench-requirements")


def _register_owner(config: pytest.Config, missed: MissedEvents | None) -> None:
    manager = config.pluginmanager
    with usage_errors():
        session = Session(id=missed.id, folder=missed.folder) if isinstance(missed, MissedLoop) else None
        config.stash[KEY] = bench = Bench(config, options_of(config), session)
        progress = LiveLine(config)
        # It is registered before the writer of the XML, to be called after it.
        manager.register(interruption := Interruption(), "llmbench-interruption")
        manager.register(reports := Reports(interruption), "llmbench-unfinished")
        manager.register(requirements := Requirements(config, bench.options.require), "llmbench-requirements")
        results = Results(config, bench, progress, reports, requirements)
        supervisor = Supervisor(config, bench, progress, interruption, results)
    manager.register(SafeReports(results, progress), "llmbench-reports")
    manager.register(supervisor, "llmbench-supervisor")
    if missed is not None:
        results.catch_up(missed)
    if is_distributed(config):
        controller = xdist.Controller(config, bench, supervisor, progress, interruption)
        manager.register(controller, "llmbench-controller")
        if isinstance(missed, MissedLoop) and missed.session is not None:
            supervisor.pytest_runtestloop(missed.session)
            if not missed.over:
                controller.pytest_runtestloop(missed.session)
