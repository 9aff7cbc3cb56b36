"""What a node says of its GPUs and PCI devices: which kernel log it answers with, and a sysfs of our own making."""

import struct
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.checks.gpu.nodes.facts import facts, kernel_log
from pytest_llmbench.checks.host.nodes.facts import (
    capabilities,
    interfaces,
    iommu_options,
    library_version,
    limits,
    software,
    toolkit,
    tuning,
)
from pytest_llmbench.checks.host.nodes.files import mount_of, names_in
from pytest_llmbench.checks.host.nodes.folders import cache_folders, nearest, room
from pytest_llmbench.checks.topology.nodes.pci_topology import InstalledFile, PciDevice, affinity, devices, installed
from pytest_llmbench.workloads.node.hardware import acs_control, redirecting_bridges
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.probe import ProbeLog
from tests.standins.nvidia_smi import BOOT, LOADED, gpu_node
from tests.standins.sysfs import write_sysfs

_XID = "[ 99.0] NVRM: Xid (PCI:0000:11:00): 48, pid=1, DBE\n"


def journal(folder: Path, text: str) -> None:
    (folder / "journal").write_text(text, encoding="utf-8")
    (folder / "bin/journalctl").write_text(f"#!/bin/sh\ncat {folder}/journal\n", encoding="utf-8")


@pytest.mark.parametrize(("dmesg", "journalctl", "source", "whole"), [
    (BOOT + LOADED, BOOT + LOADED + _XID, "dmesg", True), (LOADED, BOOT + LOADED + _XID, "journalctl", True),
    (LOADED, _XID, "dmesg", False), (None, _XID, "journalctl", False), (None, "", None, False),
])  # fmt: skip
def test_the_first_whole_log_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dmesg: str | None, journalctl: str, source: str | None, whole: bool
) -> None:
    monkeypatch.setenv("PATH", gpu_node(tmp_path / "node", log=dmesg)["PATH"])
    journal(tmp_path / "node", journalctl)
    told = kernel_log()
    assert (told.source, told.whole) == (source, whole)
    assert ("dmesg: exit status 1" in " ".join(told.refused)) == (dmesg is None)
    assert all("NVRM" in line for line in told.lines)


def test_a_program_that_leaves_another_behind_has_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, context: RankContext
) -> None:
    """One that hangs in the driver cannot be killed: nothing may wait for its end, or for that of its output."""
    monkeypatch.setenv("PATH", gpu_node(tmp_path / "node")["PATH"])
    program = tmp_path / "node/bin/nvidia-smi"
    program.write_text("#!/bin/sh\necho of GPUs\necho odd >&2\nsleep 300 &\n", encoding="utf-8")
    told = facts(context, ProbeLog(context))
    assert (told.smi.code, told.smi.error, told.smi.complaint) == (0, None, "odd")
    assert Path(told.smi_file).read_text("utf-8") == told.nvlink.text == "of GPUs\n"


def test_devices_are_those_of_the_drivers(tmp_path: Path) -> None:
    """What sysfs does not say is not made up."""
    write_sysfs(
        tmp_path, {"0002:00:00.0": ("nvidia", 1), "0001:00:00.0": ("mlx5_core", 0), "0003:00:00.0": ("nvme", 0)}
    )
    (tmp_path / "bus/pci/drivers/nvidia/new_id").write_text("", encoding="ascii")
    assert devices(tmp_path) == (
        PciDevice(bus="0001:00:00.0", driver="mlx5_core", pci_class="0x020700", numa=0),
        PciDevice(bus="0002:00:00.0", driver="nvidia", pci_class="0x030200", numa=1),
    )
    assert affinity(tmp_path) == {"0": "0000,0000000f", "1": "0000,000000f0"}
    (tmp_path / "bus/pci/drivers/nvidia/0002:00:00.0/numa_node").unlink()
    assert devices(tmp_path)[1].numa is None
    assert devices(tmp_path / "nowhere") == ()


def test_the_installed_file_is_what_the_environment_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_TOPO_FILE", raising=False)
    assert installed() is None
    path = str(tmp_path / "topo.xml")
    monkeypatch.setenv("NCCL_TOPO_FILE", path)
    assert installed() == InstalledFile(path=path, text=None, error="No such file or directory")
    (tmp_path / "topo.xml").write_text("<system/>", encoding="ascii")
    assert installed() == InstalledFile(path=path, text="<system/>", error=None)


MOUNTS = r"""
proc /proc proc rw,relatime 0 0
/dev/vda / ext4 rw,relatime 0 0
systemd-1 /home autofs rw,relatime 0 0
server:/export/my\040home /home nfs4 rw,vers=4.2 0 0
/dev/nvme0n1 /scratch\040disk xfs rw 0 0
cut off
"""


def files(root: Path, texts: dict[str, str]) -> Path:
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n", encoding="utf-8")
    return root


@pytest.mark.parametrize(("path", "kind", "source"), [
    ("/home/me/.triton", "nfs4", "server:/export/my home"), ("/homework", "ext4", "/dev/vda"),
    ("/scratch disk/x", "xfs", "/dev/nvme0n1"), ("/", "ext4", "/dev/vda"),
])  # fmt: skip
def test_the_mount_of_a_path(
    path: str, kind: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deepest counts, and of two at one place the later, which hides the other."""
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(files(tmp_path, {"self/mounts": MOUNTS})))
    found = mount_of(Path(path))
    assert found is not None
    assert (found.type, found.source) == (kind, source)


@given(st.text())
def test_any_text_is_no_reason_to_break(text: str) -> None:
    toolkit(text)
    library_version(text, "libnccl.so.2")
    iommu_options(text)


def test_limits_capabilities_and_mounts(tmp_path: Path) -> None:
    told = limits(Path("/"))
    for name in ("nofile", "memlock", "nproc"):
        soft, hard = getattr(told.soft, name), getattr(told.hard, name)
        assert hard is None or (soft is not None and soft <= hard)
    assert (told.cpus or 0) >= 1
    assert capabilities("Name:\tpython\nCapEff:\t000001ffffffffff\n") == 0x1FFFFFFFFFF
    assert capabilities("Name:\tpython\n") == 0
    assert mount_of(tmp_path) is not None


def test_interfaces_and_their_states(tmp_path: Path) -> None:
    root = files(tmp_path, {"sys/class/net/ib0/operstate": "down", "sys/class/net/eth0/operstate": "up"})
    (root / "sys/class/net/lo").mkdir()
    assert interfaces(root) == {"eth0": "up", "ib0": "down", "lo": "unknown"}
    assert "lo" in interfaces(Path("/"))
    assert names_in(tmp_path / "nothing") == []


def space(*capabilities_at: tuple[int, int, int], control: int = 0) -> bytes:
    """A configuration space with extended capabilities: where, which, and where the next one is."""
    data = bytearray(4096)
    for at, which, following in capabilities_at:
        struct.pack_into("<IHH", data, at, following << 20 | 1 << 16 | which, 0, control)
    return bytes(data)


@pytest.mark.parametrize(("data", "control"), [
    (space((0x100, 0x000D, 0), control=0x1D), 0x1D),
    (space((0x100, 0x0001, 0x148), (0x148, 0x000D, 0), control=0x1D), 0x1D),
    (space((0x100, 0x0001, 0), control=0x1D), 0),
    (space((0x100, 0x0001, 0x148), (0x148, 0x0002, 0x100)), 0),
    (bytes(64), 0),
])  # fmt: skip
def test_access_control_of_a_device(data: bytes, control: int) -> None:
    assert acs_control(data) == control


@given(st.binary(min_size=0x100, max_size=0x200))
def test_any_configuration_space_has_an_end(data: bytes) -> None:
    assert 0 <= acs_control(data) < 1 << 16


def test_bridges_that_redirect(tmp_path: Path) -> None:
    devices = tmp_path / "sys/bus/pci/devices"
    made = {"0000:00:01.0": ("0x060400", 0x1D), "0000:00:02.0": ("0x060400", 1), "0000:01:00.0": ("0x0302", 0x1D)}
    for address, (kind, control) in made.items():
        files(tmp_path, {f"sys/bus/pci/devices/{address}/class": kind})
        (devices / address / "config").write_bytes(space((0x100, 0x000D, 0), control=control))
    assert redirecting_bridges(tmp_path / "sys") == ("0000:00:01.0",)
    for device in devices.iterdir():
        (device / "config").write_bytes(bytes(64))  # all that others than root may read
    assert redirecting_bridges(tmp_path / "sys") is None
    assert redirecting_bridges(tmp_path / "nothing") == ()


def test_tuning_of_a_tree(tmp_path: Path) -> None:
    root = files(tmp_path, {
        "proc/cmdline": "root=/dev/sda token=secret intel_iommu=on iommu=pt quiet",
        "sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave",
        "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "powersave",
        "sys/devices/system/node/node0/cpulist": "0-1",
        "sys/kernel/iommu_groups/0/type": "DMA-FQ",
    })  # fmt: skip
    told = tuning(root)
    assert told.iommu_options == ("intel_iommu=on", "iommu=pt")
    assert told.governors == {"powersave": 2}
    assert told.iommu_groups == {"DMA-FQ": 1}
    assert (told.numa_nodes, told.numa_balancing) == (1, None)
    assert "secret" not in str(told)


def test_software_of_a_tree_and_of_libraries_by_the_names_of_their_files(tmp_path: Path) -> None:
    """The name that programs ask for is a link."""
    root = files(tmp_path, {"usr/local/cuda/version.json": '{"cuda": {"name": "CUDA SDK", "version": "12.4.1"}}'})
    told = software(root)
    assert told["cuda toolkit"] == "12.4.1"
    assert {"kernel", "python"} <= told.keys()
    assert "cuda toolkit" not in software(tmp_path / "nothing")
    (tmp_path / "libnccl.so.2.18.5").touch()
    (tmp_path / "libnccl.so.2").symlink_to("libnccl.so.2.18.5")
    cache = f"2 libs found in cache\n\tlibnccl.so.2 (libc6,x86-64) => {tmp_path}/libnccl.so.2\n"
    assert library_version(cache, "libnccl.so.2") == "2.18.5"
    assert library_version(cache, "libnccl.so") is None


def test_folders_of_compiled_kernels() -> None:
    usual = cache_folders({"HOME": "/home/me"})
    assert usual["TORCH_EXTENSIONS_DIR"] == Path("/home/me/.cache/torch_extensions")
    assert usual["TRITON_CACHE_DIR"] == Path("/home/me/.triton/cache")
    assert usual["CUDA_CACHE_PATH"] == Path("/home/me/.nv/ComputeCache")
    moved = cache_folders({"HOME": "/home/me", "TRITON_CACHE_DIR": "/local/triton", "XDG_CACHE_HOME": "/x"})
    assert moved["TRITON_CACHE_DIR"] == Path("/local/triton")
    assert moved["TORCH_EXTENSIONS_DIR"] == Path("/x/torch_extensions")


def test_a_folder_that_is_not_there_yet_will_be_made_on_the_disk_above_it(tmp_path: Path) -> None:
    assert nearest(tmp_path / "not" / "there") == tmp_path


def test_room_of_this_machine(tmp_path: Path) -> None:
    told = room(tmp_path)
    assert told.why is None
    assert told.free_bytes is not None
    assert told.bytes is not None
    assert 0 <= told.free_bytes <= told.bytes
    assert room(tmp_path / "nothing").why == "No such file or directory"
    assert not [*tmp_path.iterdir()]
