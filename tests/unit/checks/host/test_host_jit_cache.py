"""Folders of compiled kernels: real folders, marked and found by real nodes."""

from pathlib import Path

import pytest

from pytest_llmbench.checks.base import CheckSettings, get_check
from pytest_llmbench.checks.host.folders import _CACHES, find_cold, find_shared
from pytest_llmbench.checks.host.nodes.folders import KernelCaches, cache_folders
from pytest_llmbench.core.recipe.environments import Container, Environment
from pytest_llmbench.core.record.health import Report, Severity
from tests.support.fleet import ProcessFleet, cpu_site, mount_of_kind


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("caches")


@pytest.fixture(scope="module")
def report(folder: Path) -> Report:
    """Nodes a and b share the folder of Triton; each has its own home; b has compiled something."""
    env = {host: {"HOME": str(folder / host), "TRITON_CACHE_DIR": str(folder / "triton")} for host in "ab"}
    (folder / "b/.cache/torch_extensions/fused_adam").mkdir(parents=True)
    (folder / "a").mkdir()
    environments = {
        "bare": Environment(env={"TRITON_CACHE_DIR": str(folder / "own")}),
        "image": Environment(
            env={"TRITON_CACHE_DIR": "/inside"}, container=Container(runtime="docker", image="image:1")
        ),
    }
    fleet = ProcessFleet(site=cpu_site(2, environments=environments), hosts=("a", "b"), folder=folder, env=env)
    return get_check("jit_cache").run(fleet, CheckSettings())


def as_two_machines(report: Report) -> dict[str, KernelCaches]:
    """The nodes as if each had started by itself: the kernel says that they are one machine, as they are."""
    facts: dict[str, KernelCaches] = dict(report.evidence["caches"])
    return {**facts, "b": facts["b"].model_copy(update={"boot": "another"})}


def test_folders_that_both_nodes_see_are_shared(report: Report) -> None:
    found = [*find_shared(as_two_machines(report), report.evidence["marks"], Severity.CONFIGURE)]
    assert [finding.host for finding in found] == ["a", "b"]
    assert "TRITON_CACHE_DIR (" in found[0].message
    assert ") with b" in found[0].message
    assert "CUDA_CACHE_PATH" not in found[0].message
    assert "TORCH_EXTENSIONS_DIR" not in found[1].message


def test_nodes_of_one_machine_share_nothing_by_a_network(report: Report) -> None:
    assert not [finding for finding in report.findings if finding.kind == "shared_cache"]
    assert any("one machine" in note for note in report.notes)


def test_a_file_system_of_the_network_is_shared_though_no_mark_was_seen(report: Report) -> None:
    facts = as_two_machines(report)
    folders = facts["a"].folders
    there = {"mount": mount_of_kind("nfs4")}
    folders = {**folders, "CUDA_CACHE_PATH": folders["CUDA_CACHE_PATH"].model_copy(update=there)}
    facts["a"] = facts["a"].model_copy(update={"folders": folders})
    (finding,) = find_shared(facts, {}, Severity.CONFIGURE)
    assert finding.host == "a"
    assert ".nv/ComputeCache, nfs4) with other nodes that mount it" in finding.message


def test_cold_caches_are_a_hint(report: Report) -> None:
    found = {finding.host: finding for finding in find_cold(report.evidence["caches"])}
    assert "TORCH_EXTENSIONS_DIR" in found["a"].message
    assert "TORCH_EXTENSIONS_DIR" not in found["b"].message
    assert not found["a"].severity.fails


def test_folders_of_environments_are_looked_at_and_those_in_images_are_not(report: Report) -> None:
    assert "TRITON_CACHE_DIR of environments.bare" in report.evidence["caches"]["a"].folders
    assert not any("image" in name for name in report.evidence["caches"]["a"].folders)


def test_no_mark_is_left(report: Report, folder: Path) -> None:
    assert report.evidence["marks"]["a"]["TRITON_CACHE_DIR"] == ("a", "b")
    assert not [*folder.rglob(".llmbench-*")]


def test_both_sides_know_the_same_variables() -> None:
    """The check's, for what environments set, and the node's, for what is so by itself."""
    assert set(cache_folders({})) == set(_CACHES)
