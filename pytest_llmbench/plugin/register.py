"""The objects that a process registers: a worker waits, every other process owns the runs."""

import pytest

from pytest_llmbench.plugin import xdist
from pytest_llmbench.plugin.bench import KEY, Bench
from pytest_llmbench.plugin.interruption import Interruption
from pytest_llmbench.plugin.options import usage_errors
from pytest_llmbench.plugin.output.progress import LiveLine
from pytest_llmbench.plugin.output.results import Results, SafeReports
from pytest_llmbench.plugin.supervisor import Supervisor
from pytest_llmbench.plugin.verdict.requirements import Requirements
from pytest_llmbench.plugin.verdict.unfinished import Reports


def register(config: pytest.Config) -> None:
    """Register what this process needs, and nothing that costs anything before a test asks for a run."""
    manager = config.pluginmanager
    if xdist.is_worker(config):
        config.stash[KEY] = bench = Bench(config, xdist.session_of_worker(config))
        manager.register(xdist.Worker(bench), "llmbench-worker")
        manager.register(Requirements(config, bench.requirements), "llmbench-requirements")
        return
    with usage_errors():
        config.stash[KEY] = bench = Bench(config)
        distributed = xdist.is_distributed(config)
        progress = LiveLine(config)
        # It is registered before the writer of the XML, to be called after it.
        manager.register(interruption := Interruption(), "llmbench-interruption")
        manager.register(reports := Reports(interruption), "llmbench-unfinished")
        manager.register(requirements := Requirements(config, bench.requirements), "llmbench-requirements")
        results = Results(config, bench, progress, reports, requirements)
        supervisor = Supervisor(config, bench, progress, interruption, results)
    manager.register(SafeReports(results, progress), "llmbench-reports")
    manager.register(supervisor, "llmbench-supervisor")
    if distributed:
        manager.register(xdist.Controller(config, bench, supervisor, progress, interruption), "llmbench-controller")
