"""Real folders of real nodes: disks, compiled kernels, and the folder that all nodes share."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.checks.base import Answer, CheckSettings, Probe, get_check
from pytest_llmbench.checks.host.folders import _CACHES, DiskOptions, check_room, find_cold, find_shared, find_strangers
from pytest_llmbench.checks.host.nodes.folders import KernelCache, KernelCaches, Room, SharedView, cache_folders
from pytest_llmbench.core.files import write_text
from pytest_llmbench.core.recipe.environments import Container, Environment
from pytest_llmbench.core.record.health import Report, Severity
from pytest_llmbench.workloads.node.secret_filter import is_secret
from tests.support.fleet import ProcessFleet, cpu_site, mount_of_kind

ANY_ROOM = {"free_gib": 0, "free_inodes_percent": 0}


def test_folders_that_cannot_be_used_are_found(tmp_path: Path) -> None:
    env = {"b": {"TMPDIR": "/proc"}, "c": {"TMPDIR": str(tmp_path / "nothing")}}
    fleet = ProcessFleet(site=cpu_site(3), hosts=("a", "b", "c"), folder=tmp_path, env=env)
    report = get_check("disk").run(fleet, CheckSettings(options={**ANY_ROOM, "scratch": str(tmp_path)}))
    assert [(each.host, each.kind, each.subject) for each in report.findings] == [
        ("b", "not_writable", "/proc"),
        ("c", "not_writable", str(tmp_path / "nothing")),
    ]
    assert "No such file or directory" in report.findings[1].message
    assert {reading.subject for reading in report.readings if reading.host == "a"} == {"temporary", "shared", "scratch"}


def test_too_little_room_is_found(tmp_path: Path) -> None:
    fleet = ProcessFleet(site=cpu_site(1), hosts=("a",), folder=tmp_path)
    report = get_check("disk").run(fleet, CheckSettings(options={"free_gib": 2**40, "free_inodes_percent": 0}))
    assert [finding.kind for finding in report.findings] == ["disk_full", "disk_full"]
    assert "needs 1.09951e+12 GiB" in report.findings[0].message


@pytest.mark.parametrize(("changes", "kinds"), [
    ({}, []),
    ({"free_inodes": 4}, ["no_inodes"]),
    ({"inodes": 0, "free_inodes": 0}, []),
    ({"free_bytes": 2**30 - 1}, ["disk_full"]),
    ({"free_bytes": 0, "free_inodes": 0, "why": "Read-only file system"}, ["not_writable", "disk_full", "no_inodes"]),
])  # fmt: skip
def test_what_is_wrong_with_a_folder(changes: dict[str, Any], kinds: list[str]) -> None:
    facts = {"path": "/x", "why": None, "bytes": 2**40, "free_bytes": 2**30, "inodes": 100, "free_inodes": 5}
    room = Room(**facts | changes)
    assert [kind for kind, _, _ in check_room("temporary", room, DiskOptions())] == kinds


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Nodes a and b have homes of their own; b has compiled something."""
    folder = tmp_path_factory.mktemp("caches")
    env = {host: {"HOME": str(folder / host)} for host in "ab"}
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


def test_folders_on_a_file_system_of_the_network_are_shared() -> None:
    """A local one is not, though it has the same path on all nodes."""
    local = KernelCache(folder="/tmp/triton", mount=mount_of_kind("ext4"), warm=True)
    home = KernelCache(folder="/home/me/.nv/ComputeCache", mount=mount_of_kind("nfs4"), warm=True)
    caches = {
        "a": KernelCaches(folders={"TRITON_CACHE_DIR": local, "CUDA_CACHE_PATH": home}),
        "b": KernelCaches(folders={"TRITON_CACHE_DIR": local}),
    }
    (finding,) = find_shared(caches, Severity.CONFIGURE)
    assert finding.host == "a"
    assert "CUDA_CACHE_PATH (/home/me/.nv/ComputeCache, nfs4) with the nodes that mount it" in finding.message
    assert "TRITON_CACHE_DIR" not in finding.message


def test_folders_of_environments_are_looked_at_and_those_in_images_are_not(report: Report) -> None:
    """Cold caches are a hint."""
    assert "TRITON_CACHE_DIR of environments.bare" in report.evidence["caches"]["a"].folders
    assert not any("image" in name for name in report.evidence["caches"]["a"].folders)
    assert not [finding for finding in report.findings if finding.kind == "shared_cache"]
    found = {finding.host: finding for finding in find_cold(report.evidence["caches"])}
    assert "TORCH_EXTENSIONS_DIR" in found["a"].message
    assert "TORCH_EXTENSIONS_DIR" not in found["b"].message
    assert not found["a"].severity.fails


def test_both_sides_know_the_same_variables() -> None:
    """The check's, for what environments set, and the node's, for what is so by itself."""
    assert set(cache_folders({})) == set(_CACHES)


class Astray(ProcessFleet):
    """Nodes of which the last has mounted something else."""

    def run(self, probes: Sequence[Probe]) -> list[list[Answer]]:
        """Run the probe; what is the shared folder for the others is another on the last."""
        (probe,) = probes
        assert not [name for name in probe.config if is_secret(name, ())]  # no bundle takes a file with one
        other = {**probe.config, "folder": str(self.folder / "elsewhere")}
        right, astray = super().run(
            [replace(probe, hosts=self.hosts[:-1]), replace(probe, hosts=self.hosts[-1:], config=other)]
        )
        return [[*right, *astray]]


def test_a_node_that_sees_another_folder_is_found(tmp_path: Path) -> None:
    # From an earlier session, on another file system with the same path.
    write_text(tmp_path / "elsewhere" / "head", "old")
    fleet = Astray(site=cpu_site(3), hosts=("a", "b", "c"), folder=tmp_path)
    (finding,) = get_check("shared_folder").run(fleet, CheckSettings()).findings
    assert (finding.host, finding.kind) == ("c", "other_folder")
    assert "does not hold what this machine wrote into it" in finding.message
    assert finding.severity.fails


def test_a_node_whose_file_never_comes_is_found() -> None:
    facts = {host: SharedView(read="token", mount=mount_of_kind("nfs4")) for host in ("a", "b", "c")}
    found = [*find_strangers(facts, "token", {"a": "token a", "b": None, "c": "old c"}, Path("/shared"))]
    assert [finding.host for finding in found] == ["b", "c"]
    assert "does not see what the node wrote into /shared (nfs4 there)" in found[0].message
