"""What nodes have of the files, devices, runtimes and software that a system names; who differs is named."""

from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.checks.base import CheckSettings, get_check
from pytest_llmbench.checks.host.environment import find_missing_devices
from pytest_llmbench.checks.host.software import find_unfit_for_gpus, find_unlike
from pytest_llmbench.core.recipe.environments import Container, Environment
from pytest_llmbench.core.record.health import Report, Severity
from tests.support.fleet import HOST_FACTS, ProcessFleet, cpu_site

DEVICES = {"interfaces": {"eth0": "up", "ib0": "down", "lo": "unknown"}, "infiniband": ("mlx5_0",)}
NODE = HOST_FACTS.model_copy(update=DEVICES)


def test_what_is_not_there_is_found(tmp_path: Path) -> None:
    """Files inside an image, files to be written and names without a folder are not looked for."""
    topology, image = tmp_path / "topology.xml", tmp_path / "image.sqsh"
    topology.write_text("<system/>", encoding="utf-8")
    environments = {
        "bare": Environment(root=str(tmp_path / "no-root"), env={"GLOO_SOCKET_IFNAME": "lo,none0"}),
        "image": Environment(
            root="/inside", env={"NCCL_TOPO_FILE": "/inside.xml", "NCCL_SOCKET_IFNAME": "none"},
            container=Container(runtime="enroot", image=str(image), mounts=(f"{tmp_path}:/data:ro",)),
        ),
    }  # fmt: skip
    env = {"NCCL_TOPO_FILE": str(topology), "LD_PRELOAD": "libplain.so", "TORCHELASTIC_ERROR_FILE": "/tmp/later.json"}
    site = cpu_site(1, env=env, environments=environments)
    report = get_check("environment").run(
        ProcessFleet(site=site, hosts=("a",), folder=tmp_path / "run"), CheckSettings()
    )
    assert {finding.subject for finding in report.findings} == {
        "root of environments.bare", "GLOO_SOCKET_IFNAME of environments.bare", "image of environments.image",
        "NCCL_SOCKET_IFNAME of environments.image",
    }  # fmt: skip
    assert all(finding.severity.fails for finding in report.findings)
    assert set(report.evidence["nodes"]["a"]["paths"]) == {
        str(topology), str(image), str(tmp_path), str(tmp_path / "no-root"),
    }  # fmt: skip


def test_an_unreadable_file_of_one_variable_is_found(tmp_path: Path) -> None:
    empty = tmp_path / "empty.xml"
    empty.touch()
    site = cpu_site(2, env={"NCCL_TOPO_FILE": str(empty)})
    report = get_check("environment").run(ProcessFleet(site=site, hosts=("a", "b"), folder=tmp_path), CheckSettings())
    assert [finding.host for finding in report.findings] == ["a", "b"]
    assert "is empty (0 bytes)" in report.findings[0].message


FINE, HINT, BAD = None, Severity.MONITOR, Severity.CONFIGURE


@pytest.mark.parametrize(("name", "values"), [
    ("NCCL_SOCKET_IFNAME", {"eth": FINE, "=eth": BAD, "ens,eth": HINT, "ib": BAD, "^lo": FINE, "^eth,ib,lo": BAD}),
    ("GLOO_SOCKET_IFNAME", {"eth0": FINE, "eth": BAD, "eth0,eth1": BAD}),
    ("NCCL_IB_HCA", {"=mlx5_0:1": FINE, "mlx5_1": BAD}),
    ("UCX_NET_DEVICES", {"all": FINE, "mlx5_0:1,eth0": FINE, "mlx5_9:1": BAD}),
])  # fmt: skip
def test_devices_by_the_rules_of_their_readers(name: str, values: dict[str, Severity | None]) -> None:
    """One of several prefixes is enough for NCCL; Gloo wants every name. A device that is down is of no use."""
    found = {value: [*find_missing_devices("n", NODE, {("env", name): value})] for value in values}
    assert {value: each[0].severity if each else None for value, each in found.items()} == values


DOCKER = {
    "fine": "printf 'Server:\\n Server Version: 28.2.2\\n Runtimes: io.containerd.runc.v2 nvidia runc\\n'",
    "described": "printf 'Server:\\n Server Version: 28.2.2\\n Runtimes: runc\\n  cdi: nvidia.com/gpu=0\\n'",
    "plain": "printf 'Server:\\n Server Version: 28.2.2\\n Runtimes: io.containerd.runc.v2 runc\\n'",
    "dead": "echo 'Cannot connect to the Docker daemon'; exit 1",
    "half": "printf 'Client:\\n Version: 20.10\\nServer:\\nERROR: permission denied\\n'",
}
ENROOT = {"fine": "echo 3.5.0", "dead": "echo 'enroot: no such thing'; exit 2"}
APPTAINER = {"fine": "echo apptainer version 1.4.2", "dead": "echo 'ERROR: no user namespaces'; exit 255"}
SRUN = {"fine": "echo '      --container-image=[USER@][REGISTRY#]IMAGE'", "plain": "echo 'Usage: srun'"}


def site(runtime: Any, gpus_per_node: int = 1) -> Any:
    image = Environment(container=Container(runtime=runtime, image="image:1"))
    return cpu_site(1, environments={"nemo": image, "bare": Environment()}, gpus_per_node=gpus_per_node)


def run(folder: Path, runtime: str, program: str, scripts: dict[str, str], gpus_per_node: int = 1) -> Report:
    """Run the check on one node for each script, on whose PATH the program is that script."""
    env = {}
    for host, script in scripts.items():
        path = folder / host / program
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)
        env[host] = {"PATH": f"{path.parent}:/usr/sbin:/usr/bin:/sbin:/bin"}
    fleet = ProcessFleet(site=site(runtime, gpus_per_node), hosts=tuple(scripts), folder=folder, env=env)
    return get_check("container_runtime").run(fleet, CheckSettings())


def found(report: Report) -> dict[str | None, str]:
    return {finding.host: finding.message for finding in report.findings}


def test_docker_has_to_answer_and_to_know_the_gpus(tmp_path: Path) -> None:
    told = found(run(tmp_path, "docker", "docker", DOCKER))
    assert told.keys() == {"plain", "dead", "half"}
    assert "docker has no nvidia runtime" in told["plain"]
    assert "needed by environments.nemo" in told["plain"]
    assert "`docker info` ended with status 1: Cannot connect to the Docker daemon" in told["dead"]


def test_without_gpus_docker_only_has_to_answer(tmp_path: Path) -> None:
    scripts = {"plain": DOCKER["plain"], "half": DOCKER["half"]}
    assert found(run(tmp_path, "docker", "docker", scripts, gpus_per_node=0)).keys() == {"half"}


@pytest.mark.parametrize(("gpus_per_node", "unfit"), [(0, {"dead"}), (1, {"dead", "fine"})])
def test_enroot_has_to_answer_and_to_have_its_hook(tmp_path: Path, gpus_per_node: int, unfit: set[str]) -> None:
    """The hook calls nvidia-container-cli, which no node has here."""
    told = found(run(tmp_path, "enroot", "enroot", ENROOT, gpus_per_node))
    assert told.keys() == unfit
    assert "ended with status 2" in told["dead"]
    assert gpus_per_node == 0 or "nvidia-container-cli" in told["fine"]


def test_apptainer_has_to_answer_and_pyxis_is_an_option_of_srun(tmp_path: Path) -> None:
    told = found(run(tmp_path, "apptainer", "apptainer", APPTAINER))
    assert told.keys() == {"dead"}
    assert "ended with status 255: ERROR: no user namespaces" in told["dead"]
    assert found(run(tmp_path / "pyxis", "pyxis", "srun", SRUN)).keys() == {"plain"}


def test_a_runtime_that_is_not_there(tmp_path: Path) -> None:
    fleet = ProcessFleet(
        site=site("enroot"), hosts=("a",), folder=tmp_path, env={"a": {"PATH": str(tmp_path / "nothing")}}
    )
    report = get_check("container_runtime").run(fleet, CheckSettings())
    assert "cannot be run: No such file or directory" in found(report)["a"]
    assert report.findings[0].severity.fails


def with_program(folder: Path, name: str, script: str) -> dict[str, str]:
    """An environment in which a program is another one."""
    path = folder / "bin" / name
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return {"PATH": f"{path.parent}:/usr/sbin:/usr/bin:/sbin:/bin"}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> ProcessFleet:
    """Three nodes with one enroot, and one with another."""
    folder = tmp_path_factory.mktemp("software")
    usual = with_program(folder / "usual", "enroot", "echo 3.5.0")
    other = with_program(folder / "other", "enroot", "echo 3.4.1")
    env = dict.fromkeys("abd", usual) | {"c": other}
    return ProcessFleet(site=cpu_site(4), hosts=("a", "b", "c", "d"), folder=folder, env=env)


def test_the_node_with_another_version_is_found(fleet: ProcessFleet) -> None:
    report = get_check("software").run(fleet, CheckSettings())
    (finding,) = report.findings
    assert (finding.host, finding.subject, finding.severity) == ("c", "enroot", Severity.CONFIGURE)
    assert finding.message == "3.4.1; 3.5.0 on a, b, d"
    assert {"kernel", "python", "enroot"} <= report.evidence["software"]["a"].keys()


def test_software_that_one_node_lacks_is_found_and_what_may_differ_is_ignored(fleet: ProcessFleet) -> None:
    (finding,) = find_unlike({"a": {"ofed": "5.8"}, "b": {}, "c": {"ofed": "5.8"}}, ())
    assert (finding.host, finding.message) == ("b", "none; 5.8 on a, c")
    assert not get_check("software").run(fleet, CheckSettings(options={"ignore": ["enroot"]})).findings


@pytest.mark.parametrize(("torch", "cuda", "driver", "severity", "words"), [
    ("2.6.0+cu124", "12.4", "12.4", None, ""),
    ("2.6.0+cu118", "11.8", "12.8", None, ""),
    ("2.6.0+cu124", "12.4", "11.8", Severity.CONFIGURE, "built for CUDA 12.4, and the driver runs 11.8 at most"),
    ("2.6.0+cu128", "12.8", "12.2", Severity.MONITOR, "newer than the driver's 12.2"),
    ("2.6.0+cu1210", "12.10", "12.9", Severity.MONITOR, "newer than the driver's 12.9"),
    ("2.6.0+cpu", None, "12.2", Severity.CONFIGURE, "PyTorch 2.6.0+cpu is not built for CUDA"),
    (None, None, "12.2", None, ""),
    ("2.6.0+cu124", "12.4", None, Severity.CONFIGURE, "libcuda.so.1 is missing"),
])  # fmt: skip
def test_a_pytorch_that_the_driver_cannot_run(
    torch: str | None, cuda: str | None, driver: str | None, severity: Severity | None, words: str
) -> None:
    """A newer major version never runs; a newer minor one mostly does."""
    versions = {"torch": torch, "cuda": cuda, "driver's cuda": driver}
    found = [*find_unfit_for_gpus("n", {name: version for name, version in versions.items() if version is not None})]
    assert [finding.severity for finding in found] == ([severity] if severity else [])
    assert all(words in finding.message for finding in found)
