"""The plan of a pytest session as plain data."""

import contextlib
import io
from collections.abc import Sequence
from typing import Any

import pytest

from pytest_llmbench.cluster.runs import RunSpec
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.engines.base import get_engine
from pytest_llmbench.plugin.bench import bench_of
from pytest_llmbench.session.script.requests import hours_at_most


def planned(words: Sequence[str]) -> tuple[int, dict[str, Any]]:
    """Have pytest plan, and give its exit code and its plan; one that cannot run has the reasons.

    Raises:
        ConfigError: pytest refuses its arguments, or cannot collect the tests.
    """
    catcher, told = _Catcher(), io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        code = int(pytest.main(["--llmbench-plan", "--assert=plain", *words], plugins=[catcher]))
    if catcher.plan is None or code not in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}:
        raise ConfigError(told.getvalue().strip())
    return code, catcher.plan


class _Catcher:
    """Looks at what is planned before pytest forgets it."""

    plan: dict[str, Any] | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Take it down."""
        bench = bench_of(session.config)
        if bench.planned.empty:
            self.plan = {"runs": [], "checks": []}
            return
        settings = bench.settings
        self.plan = {
            "system": settings.system.name,
            "cluster": settings.cluster,
            "scale": settings.scale,
            "nodes": settings.nodes,
            "checks": list(bench.planned.checks),
            "runs": [_run(run, settings) for run in bench.planned.runs],
            "tests": [test.test for test in bench.planned.tests],
            "gpu_hours_at_most": hours_at_most(bench.planned, settings, bench.session),
        }


def _run(run: RunSpec, settings: Settings) -> dict[str, Any]:
    topology, recipe = settings.topology(run.recipe), run.recipe
    return {
        "run": run.key,
        "recipe": recipe.name,
        "engine": recipe.engine,
        "nodes": topology.nodes,
        "gpus_per_node": topology.gpus_per_node,
        "ranks": topology.world_size,
        "steps": recipe.steps,
        "tokens_per_step": recipe.tokens_per_step,
        "time_limit_min": settings.time_limit_min(recipe),
        "problems": list(get_engine(recipe.engine).problems(recipe, topology)),
    }
