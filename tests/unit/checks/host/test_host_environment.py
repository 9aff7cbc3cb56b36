"""What a system's file names has to be on the nodes: real files, and this machine's own interfaces."""

from pathlib import Path

import pytest

from pytest_llmbench.checks.base import CheckSettings, get_check
from pytest_llmbench.checks.host.environment import find_missing_devices
from pytest_llmbench.core.recipe.environments import Container, Environment
from pytest_llmbench.core.record.health import Severity
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


@pytest.mark.parametrize(
    ("name", "values"),
    [
        (
            "NCCL_SOCKET_IFNAME",
            {"eth": FINE, "=eth": BAD, "ens,eth": HINT, "ib": BAD, "^lo": FINE, "^eth,ib,lo": BAD},
        ),
        ("GLOO_SOCKET_IFNAME", {"eth0": FINE, "eth": BAD, "eth0,eth1": BAD}),
        ("NCCL_IB_HCA", {"=mlx5_0:1": FINE, "mlx5_1": BAD}),
        ("UCX_NET_DEVICES", {"all": FINE, "mlx5_0:1,eth0": FINE, "mlx5_9:1": BAD}),
    ],
)
def test_devices_by_the_rules_of_their_readers(name: str, values: dict[str, Severity | None]) -> None:
    """One of several prefixes is enough for NCCL; Gloo wants every name. A device that is down is of no use."""
    found = {value: [*find_missing_devices("n", NODE, {("env", name): value})] for value in values}
    assert {value: each[0].severity if each else None for value, each in found.items()} == values
