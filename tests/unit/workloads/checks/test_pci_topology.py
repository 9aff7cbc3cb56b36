"""What a node says of its PCI devices, from a sysfs of our own making."""

from pathlib import Path

import pytest

from pytest_llmbench.checks.topology.nodes.pci_topology import (
    InstalledFile,
    PciDevice,
    affinity,
    cpu,
    devices,
    installed,
)
from tests.standins.sysfs import write_sysfs


def test_devices_are_those_of_the_drivers(tmp_path: Path) -> None:
    write_sysfs(
        tmp_path, {"0002:00:00.0": ("nvidia", 1), "0001:00:00.0": ("mlx5_core", 0), "0003:00:00.0": ("nvme", 0)}
    )
    (tmp_path / "bus/pci/drivers/nvidia/new_id").write_text("", encoding="ascii")
    assert devices(tmp_path) == (
        PciDevice(bus="0001:00:00.0", driver="mlx5_core", pci_class="0x020700", numa=0),
        PciDevice(bus="0002:00:00.0", driver="nvidia", pci_class="0x030200", numa=1),
    )
    assert affinity(tmp_path) == {"0": "0000,0000000f", "1": "0000,000000f0"}


def test_what_sysfs_does_not_say_is_not_made_up(tmp_path: Path) -> None:
    write_sysfs(tmp_path, {"0001:00:00.0": ("nvidia", 0)})
    (tmp_path / "bus/pci/drivers/nvidia/0001:00:00.0/numa_node").unlink()
    assert devices(tmp_path)[0].numa is None
    assert devices(tmp_path / "nowhere") == ()


def test_this_machine_has_a_processor() -> None:
    assert cpu()["arch"]


def test_the_installed_file_is_what_the_environment_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_TOPO_FILE", raising=False)
    assert installed() is None
    path = str(tmp_path / "topo.xml")
    monkeypatch.setenv("NCCL_TOPO_FILE", path)
    assert installed() == InstalledFile(path=path, text=None, error="No such file or directory")
    (tmp_path / "topo.xml").write_text("<system/>", encoding="ascii")
    assert installed() == InstalledFile(path=path, text="<system/>", error=None)
