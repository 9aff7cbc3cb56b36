"""From options to the shape of a run."""

from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.cluster.settings import Settings, check, resolve_cluster
from pytest_llmbench.cluster.system import System
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.recipes import Recipe
from tests.support.shipped import shipped_recipes

SLURM = System(name="eight", cluster="slurm", gpus_per_node=8)
UNKNOWN = System(name="slurm", cluster="slurm")
CPU = System(name="local", cluster="local", gpus_per_node=0, cpu_ranks_per_node=2)


@pytest.fixture(autouse=True)
def outside_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever runs these tests, the settings mean the same."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)


def settings(**given: Any) -> Settings:
    """Settings of eight-GPU nodes on Slurm, but for what is given."""
    return Settings(**{"system": SLURM, "cluster": "slurm", "allocation": "run", "run_dir": Path("reports"), **given})


def recipe(name: str, scale: Any = "full") -> Recipe:
    return shipped_recipes(scale)[name]


def test_a_run_has_the_shape_and_the_time_of_its_recipe_but_for_what_is_given() -> None:
    big = settings().topology(recipe("opt175b"))
    assert (big.nodes, big.gpus_per_node, big.world_size) == (128, 8, 1024)
    assert settings().topology(recipe("opt125m")).nodes == 1
    assert settings(nodes=8).topology(recipe("opt175b")).nodes == 8
    assert settings(nodes=8, nodes_per_run=2).topology(recipe("opt175b")).nodes == 2
    assert settings(nodes_per_run=2).topology(recipe("opt175b")).nodes == 2
    assert settings(scale="smoke").topology(recipe("opt175b", "smoke")).nodes == 1
    assert settings().time_limit_min(recipe("opt125m")) == 60
    assert settings(time_min=7).time_limit_min(recipe("opt125m")) == 7


@pytest.mark.parametrize(
    ("asked", "system", "gpus"), [(None, UNKNOWN, 8), (None, CPU, 0), (4, SLURM, 4), (0, SLURM, 0), (None, SLURM, 8)]
)
def test_gpus_are_the_options_then_the_systems_then_the_recipes(asked: int | None, system: System, gpus: int) -> None:
    assert settings(system=system, gpus_per_node=asked).topology(recipe("opt125m")).gpus_per_node == gpus


def test_this_machine_is_one_node() -> None:
    """A recipe published for 128 nodes is judged impossible on the one there is, not run on 128 of it."""
    assert settings(system=CPU, cluster="local").topology(recipe("opt175b")).nodes == 1
    debug = settings(system=CPU, cluster="debug").topology(recipe("opt175b"))
    assert (debug.nodes, debug.world_size) == (1, 1)


@pytest.mark.parametrize(
    ("asked", "system", "expected"),
    [
        ("auto", "H200", ("H200", None)), ("slurm", None, ("slurm", "slurm")), ("slurm", "H200", ("H200", "slurm")),
        ("local", None, ("local", "local")), ("debug", None, ("local", "debug")), ("local", "H200", ("H200", "local")),
    ],
)  # fmt: skip
def test_cluster_and_system_complement(asked: str, system: str | None, expected: tuple[str, str | None]) -> None:
    """Either alone is enough; with a system and `auto`, its file says how jobs get there."""
    assert resolve_cluster(asked, system) == expected


def test_auto_is_slurm_inside_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert resolve_cluster("auto", None) == ("local", None)
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    assert resolve_cluster("auto", None) == ("slurm", None)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"system": CPU, "cluster": "local", "nodes": 2}, "this machine is one node"),
        ({"nodes": 2, "nodes_per_run": 3}, "--nodes-per-run 3 is more than --nodes 2"),
        ({"allocation": "session"}, "give their number with --nodes"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check(settings(**given))


def test_what_can_be_meant_is_not() -> None:
    check(settings())
    check(settings(nodes=8, allocation="session", nodes_per_run=8))
    check(settings(system=CPU, cluster="local", nodes=1))
