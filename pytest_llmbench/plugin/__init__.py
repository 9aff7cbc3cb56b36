"""The pytest plugin: hooks that only delegate. Each feature lives in the module its name says."""

from collections.abc import Generator

import pytest

from pytest_llmbench import hookspecs
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.plugin import bench, feasible, lending, options, parametrize, register, restart, selection, xdist
from pytest_llmbench.plugin import health as checking
from pytest_llmbench.plugin.fixtures import health, reference, run
from pytest_llmbench.plugin.options import usage_errors
from pytest_llmbench.plugin.output import reports
from pytest_llmbench.plugin.verdict import declared, measured, outcome

__all__ = ["health", "reference", "run"]


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the hooks that a `conftest.py` may have."""
    pluginmanager.add_hookspecs(hookspecs)


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the ini keys; options wait until all other plugins and conftest files have declared theirs."""
    options.add_ini_keys(parser)
    config = pluginmanager.get_plugin("pytestconfig")
    if config is not None and options.loaded_by_conftest(pluginmanager):  # the hook below comes too late
        options.add_options(parser, config)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None]:
    """Declare the options."""
    restart.correct(early_config, parser, args)
    yield
    options.add_options(parser, early_config)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say which short forms of options belong to others, where one is on the command line."""
    return options.told_of_left_out(config) if options.asked_of_others(config) else []


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker and the objects that hold a session's state."""
    config.addinivalue_line("markers", parametrize.MARKER)
    config.addinivalue_line("markers", checking.MARKER)
    if options.plan_only(config) and hasattr(config.option, "dist"):
        config.option.dist, config.option.tx, config.option.numprocesses = "no", [], None
    with usage_errors():
        lending.lend(config)
    register.register(config)
    config.pluginmanager.register(feasible, "llmbench-feasibility")
    config.pluginmanager.register(selection, "llmbench-selection")
    config.pluginmanager.register(reports, "llmbench-benchmark-json")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Refuse options that cannot be meant before anything is collected."""
    if options.given_on_command_line(session.config) and not xdist.is_worker(session.config):
        with usage_errors():
            bench.bench_of(session.config).check()
    if not (xdist.is_worker(session.config) or options.plan_only(session.config)):
        with usage_errors():
            bench.bench_of(session.config).take_over()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test case of every recipe, or of every reference of every recipe."""
    if parametrize.is_ours(metafunc, "health"):
        try:
            parametrize.refuse_forked(metafunc)
            checking.parametrize(metafunc, bench.bench_of(metafunc.config).nodes_to_check)
        except ConfigError as error:
            raise pytest.Collector.CollectError(str(error)) from error
    if parametrize.is_ours(metafunc, "run") or parametrize.is_ours(metafunc, "reference"):
        try:
            parametrize.refuse_forked(metafunc)
            state = bench.bench_of(metafunc.config)
            parametrize.parametrize(
                metafunc, state.choices, state.recipes, state.recipes_of_unmarked, state.settings.repeat
            )
        except ConfigError as error:
            raise pytest.Collector.CollectError(str(error)) from error


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Give every test of ours its verdict."""
    report = yield
    test = declared.declared(item)
    if test is not None:
        outcome.judge(item, call, report, lambda: declared.facts(test, bench.bench_of(item.config)))
    return report


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Explain a missed threshold."""
    return measured.explain_comparison(op, left, right)
