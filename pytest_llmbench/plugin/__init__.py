"""The pytest plugin: hooks that only delegate to the modules of the features.

Every session of pytest imports this file. A hook that only a session of ours needs imports its module when called.
"""

from collections.abc import Generator
from pathlib import Path

import pytest

from pytest_llmbench import hookspecs
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.plugin import begin, options, ours, paths
from pytest_llmbench.plugin.fixtures import health, reference, run

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
    paths.refuse_foreign_config(early_config, parser, args)
    yield
    options.add_options(parser, early_config)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """List the short forms of options that belong to other plugins, where one is on the command line."""
    return options.left_out_lines(config, used=True)


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, and the objects that hold a session's state, now or as soon as a test is ours."""
    config.addinivalue_line("markers", ours.RECIPE_MARKER)
    config.addinivalue_line("markers", ours.CHECK_MARKER)
    ours.keep_warning(config)
    if options.plan_only(config) and hasattr(config.option, "dist"):
        config.option.dist, config.option.tx, config.option.numprocesses = "no", [], None
    begin.begin_or_wait(config)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Refuse illegal options before anything is collected."""
    if ours.is_begun(session.config) and not ours.is_worker(session.config):
        from pytest_llmbench.plugin.register import refuse  # noqa: PLC0415  # heavy

        refuse(session.config)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Skip folders of sessions, which may hold thousands of runs."""
    return True if ours.is_session_folder(collection_path) else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test case of every recipe, or of every reference of every recipe."""
    if any(ours.is_ours(metafunc, name) for name in ours.FIXTURES):
        try:
            begin.begin(metafunc.config)
            from pytest_llmbench.plugin.collection.parametrize import make_cases  # noqa: PLC0415  # heavy

            make_cases(metafunc)
        except ConfigError as error:
            raise pytest.Collector.CollectError(str(error)) from error


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Give every test of ours its verdict."""
    report = yield
    if ours.is_begun(item.config):
        from pytest_llmbench.plugin.verdict.outcome import judge  # noqa: PLC0415  # heavy

        judge(item, call, report)
    return report


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Explain a missed threshold."""
    if not (ours.is_of_ours(left) or ours.is_of_ours(right)):
        return None
    from pytest_llmbench.plugin.verdict.measured import explain_comparison  # noqa: PLC0415  # heavy

    return explain_comparison(op, left, right)
