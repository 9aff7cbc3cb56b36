"""Container runtimes: programs that answer as the real ones do, each on a node of its own."""

from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.checks.base import CheckSettings, get_check
from pytest_llmbench.core.recipe.environments import Container, Environment
from pytest_llmbench.core.record.health import Report
from tests.support.fleet import ProcessFleet, cpu_site

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
