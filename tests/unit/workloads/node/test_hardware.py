"""What a node is built of, from a tree of sysfs and a module in place of NVML, and what a rank finds on it."""

import json
import os
import platform
import subprocess
import sys
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_llmbench.core.errors import RunError
from pytest_llmbench.core.wire.fault import SimulatedFault
from pytest_llmbench.workloads.node import hardware, machine
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.nccl_lines import NcclRecord


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n", encoding="ascii")


def add_card(
    root: Path, place: str, rdma: str | None = None, *, guid: str = "0:0", rate: str = "", **files: str
) -> None:
    """Add a PCI device at its place below `pci0000:00`, and the RDMA device of it with one port."""
    card = root / "devices/pci0000:00" / place
    write(card, **{"vendor": "0x15b3", "device": "0x1021", "class": "0x020700", **files})
    (root / "bus/pci/devices").mkdir(parents=True, exist_ok=True)
    (root / "bus/pci/devices" / card.name).symlink_to(card)
    if rdma is not None:
        device = card / "infiniband" / rdma
        write(device, sys_image_guid=guid)
        write(
            device / "ports/1", rate=rate or "400 Gb/sec (4X NDR)", state="4: ACTIVE", phys_state="5: LinkUp",
            link_layer="InfiniBand",
        )  # fmt: skip
        (device / "device").symlink_to(card)
        (root / "class/infiniband").mkdir(parents=True, exist_ok=True)
        (root / "class/infiniband" / rdma).symlink_to(device)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A GPU with a NIC below one root port, a card with two ports, one port that two functions show, a dead card."""
    gpu = {"vendor": "0x10de", "class": "0x030200"}
    add_card(tmp_path, "0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0", **gpu)
    write(tmp_path / "class/dmi/id", product_name="X1")
    slot = {"max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16"}
    add_card(tmp_path, "0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0", "mlx5_0", guid="a:1", **slot)
    add_card(tmp_path, "0000:00:02.0/0000:05:00.0", "mlx5_1", guid="b:1", rate="10 Gb/sec (4X)")
    add_card(tmp_path, "0000:00:02.0/0000:05:00.1", "mlx5_2", guid="b:1")
    add_card(tmp_path, "0000:00:03.0/0000:06:00.0", "mlx5_3", guid="c:1")
    add_card(tmp_path, "0000:00:04.0/0000:07:00.0", "mlx5_4", guid="c:1")
    add_card(tmp_path, "0000:00:05.0/0000:08:00.0")
    add_card(tmp_path, "0000:00:06.0", "rdmap0", vendor="0x1d0f", device="0xefa2", **{"class": "0x020000"})
    add_card(tmp_path, "0000:00:07.0", vendor="0x1d0f", device="0xefa2", **{"class": "0x020000"})
    add_card(tmp_path, "0000:00:08.0", **{"class": "0x020000"})
    return tmp_path


class NvmlError(Exception):
    """The error of the stand-in for NVML."""


def stand_in(**changes: Any) -> SimpleNamespace:
    """NVML of two H200 on one switch, as on a machine whose NVML lacks the fabric."""

    def fails(*_: Any) -> None:
        raise NvmlError("Not Supported")

    def link_state(_: Any, link: int) -> int:
        return 1 if link < 18 else fails()  # type: ignore[func-returns-value,return-value]

    functions: dict[str, Any] = {
        "Init": lambda: None, "Shutdown": lambda: None, "DeviceGetCount": lambda: 2,
        "DeviceGetHandleByIndex": lambda index: index, "DeviceGetName": lambda _: "NVIDIA H200",
        "DeviceGetPciInfo": lambda index: SimpleNamespace(busId=f"00000000:{index:02X}:00.0"),
        "DeviceGetCudaComputeCapability": lambda _: (9, 0), "DeviceGetNumGpuCores": lambda _: 16896,
        "DeviceGetMaxClockInfo": lambda _, clock: (1980, 3201)[clock], "DeviceGetMemoryBusWidth": lambda _: 6016,
        "DeviceGetEnforcedPowerLimit": lambda _: 700_000, "DeviceGetPowerManagementDefaultLimit": lambda _: 700_000,
        "DeviceGetGpuMaxPcieLinkGeneration": lambda _: 5, "DeviceGetMaxPcieLinkGeneration": lambda _: 5,
        "DeviceGetMaxPcieLinkWidth": lambda _: 16, "DeviceGetMigMode": fails, "DeviceGetNvLinkState": link_state,
        "DeviceGetNvLinkVersion": lambda *_: 6, "DeviceGetNvLinkRemoteDeviceType": lambda *_: 2,
        "DeviceGetP2PStatus": lambda *_: 0, "DeviceGetGpuFabricInfoV": fails, "DeviceGetC2cModeInfoV": fails,
    }  # fmt: skip
    constants = {"NVML_CLOCK_SM": 0, "NVML_CLOCK_MEM": 1, "NVML_P2P_CAPS_INDEX_NVLINK": 2, "NVML_P2P_STATUS_OK": 0}
    named = {f"nvml{name}": function for name, function in {**functions, **changes}.items()}
    return SimpleNamespace(NVMLError=NvmlError, **named, **constants)


def test_cards_and_ports_of_sysfs(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    context = RankContext.__new__(RankContext)
    for name, value in {"config": {"sysfs": str(root)}, "device": "cuda"}.items():
        object.__setattr__(context, name, value)
    facts = hardware.facts(context, SimpleNamespace(phase=lambda _: None))  # type: ignore[arg-type]
    assert facts.product == "X1"
    assert facts.root_ports == {"0000:03:00.0": "0000:00:01.0"}
    assert sorted(facts.driverless) == ["0000:00:07.0", "0000:08:00.0"]
    ports = {port.device: port for port in facts.own_ports}
    assert set(ports) == {"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "rdmap0"}
    first = ports["mlx5_0"]
    assert (first.rate_gbits, first.active, first.pcie_gen, first.pcie_width) == (400, True, 5, 16)
    assert facts.near(first)
    assert not facts.near(ports["mlx5_3"])
    assert ports["rdmap0"].root_port is None
    assert facts.trouble is not None
    assert "nvidia-ml-py is not installed" in facts.trouble


@pytest.mark.parametrize(("vendor", "family", "model", "generation"), [
    ("GenuineIntel", 6, 85, 3), ("GenuineIntel", 6, 106, 4), ("GenuineIntel", 6, 143, None),
    ("AuthenticAMD", 23, 49, 4), ("AuthenticAMD", 25, 1, 4), ("AuthenticAMD", 26, 2, None),
])  # fmt: skip
def test_the_generation_of_a_processor(vendor: str, family: int, model: int, generation: int | None) -> None:
    text = f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: X\n"
    assert hardware.find_cpu_pcie_gen(text) == generation
    assert hardware.find_cpu_pcie_gen("") is None


def test_gpus_by_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML's version 6 is NVLink 4, and a fact that it lacks is None."""
    monkeypatch.setitem(sys.modules, "pynvml", stand_in())
    monkeypatch.setattr(hardware, "read_multicast", lambda: {"0000:00:00.0": False})
    (one, two), joined, trouble = hardware.read_gpus()
    assert (joined, trouble) == (True, None)
    assert (one.name, one.capability, one.sms, one.bus) == ("NVIDIA H200", "9.0", 132, "0000:00:00.0")
    assert (one.nvlink_version, one.nvlinks, one.nvswitch, one.fabric, one.c2c, one.mig) == (
        4, 18, True, None, False, False,
    )  # fmt: skip
    assert (one.multicast, two.multicast) == (False, None)
    assert (one.power_limit_w, one.bus_bits, one.pcie_gen, one.pcie_width) == (700.0, 6016, 5, 16)
    monkeypatch.setitem(sys.modules, "pynvml", stand_in(DeviceGetP2PStatus=lambda *_: 3))
    assert hardware.read_gpus()[1] is False

    def lost(_: int) -> None:
        raise NvmlError("GPU is lost")

    monkeypatch.setitem(sys.modules, "pynvml", stand_in(DeviceGetHandleByIndex=lost))
    assert hardware.read_gpus() == ((), None, "NVML: GPU is lost")


@pytest.mark.parametrize(("near", "cores", "far"), [
    ("0-1", {2, 3}, True), ("0-1", {1, 2}, False), ("0-1", {0}, False), ("2", {0}, True), ("0,2-3", {1}, False),
    ("0-3", {3}, False), (None, {3}, False), ("0-1", {8}, False), ("0", {1}, False),
])  # fmt: skip
def test_cores_on_another_socket_than_the_gpu(tmp_path: Path, near: str | None, cores: set[int], far: bool) -> None:
    """A core of the same socket is near, whatever its NUMA node."""
    for core in range(4):
        write(tmp_path / f"devices/system/cpu/cpu{core}/topology", physical_package_id=str(core // 2))
    write(tmp_path / "bus/pci/devices/0000:01:00.0", **({} if near is None else {"local_cpulist": near}))
    assert hardware.is_far("0000:01:00.0", cores, tmp_path) is far


@pytest.mark.parametrize(("near", "bound"), [("0-1", {2, 3}), ("2-3", {0, 1})])
def test_a_simulated_wrong_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, near: str, bound: set[int]) -> None:
    """It strikes when NCCL's lines are taken; without another socket it is an error, and never a healthy run."""
    allowed = {0, 1, 2, 3}

    def bind(_: int, cores: set[int]) -> None:
        nonlocal allowed
        allowed = cores

    for core in range(4):
        write(tmp_path / f"devices/system/cpu/cpu{core}/topology", physical_package_id=str(core // 2))
    write(tmp_path / "bus/pci/devices/0000:01:00.0", local_cpulist=near)
    monkeypatch.setattr(hardware, "gpu_identity", lambda _: "GPU-1")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: allowed)
    monkeypatch.setattr(os, "sched_setaffinity", bind)
    nvml = stand_in(
        DeviceGetHandleByUUID=lambda _: 1, DeviceGetPciInfo=lambda _: SimpleNamespace(busId="00000000:01:00.0")
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    rank: Any = SimpleNamespace(simulate=SimulatedFault.parse("far-cores"), folder=tmp_path, rank=0, ranks_per_node=1)
    monkeypatch.setattr(hardware, "bind_far", bind_far := partial(hardware.bind_far, root=tmp_path))
    monkeypatch.setattr("pytest_llmbench.workloads.rank.nccl_lines.bind_far", bind_far)
    monkeypatch.setattr(os, "environ", {**os.environ})
    NcclRecord(rank)
    assert allowed == bound
    assert hardware.read_path(rank, tmp_path).far
    with_one_socket = allowed = {int(near[0])}
    with pytest.raises(RunError, match="no cores of another socket"):
        bind_far(rank)
    assert allowed == with_one_socket


def test_the_way_between_a_rank_and_its_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "gpu_identity", lambda _: "GPU-1")
    monkeypatch.setitem(
        sys.modules, "pynvml", stand_in(
            DeviceGetHandleByUUID=lambda _: 1, DeviceGetCurrPcieLinkGeneration=lambda _: 4,
            DeviceGetCurrPcieLinkWidth=lambda _: 8,
        ),
    )  # fmt: skip
    path = hardware.read_path(RankContext.__new__(RankContext), tmp_path)
    assert (path.far, path.pcie_gen, path.pcie_width) == (False, 4, 8)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert hardware.read_path(RankContext.__new__(RankContext)).pcie_gen is None


def see_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    cuda = SimpleNamespace(device_count=lambda: count)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))


@pytest.mark.parametrize(("visible", "local_rank", "index"), [(8, 5, 5), (1, 5, 0), (1, 0, 0)])
def test_a_rank_takes_its_own_gpu(monkeypatch: pytest.MonkeyPatch, visible: int, local_rank: int, index: int) -> None:
    see_gpus(monkeypatch, visible)
    assert machine.gpu_index(local_rank) == index


@pytest.mark.parametrize(("visible", "local_rank", "given", "advice"), [
    (0, 0, "", "ask Slurm"), (2, 2, "0,1", "ask Slurm"), (0, 0, "0,1", "run nvidia-smi"),
])  # fmt: skip
def test_too_few_gpus_are_an_error_with_numbers(
    monkeypatch: pytest.MonkeyPatch, visible: int, local_rank: int, given: str, advice: str
) -> None:
    """Slurm gave eight to a rank that saw none, and the message sent the user to Slurm; the cause was the driver."""
    see_gpus(monkeypatch, visible)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    message = rf"needs GPU {local_rank}, but its process sees {visible} of them \(CUDA_VISIBLE_DEVICES='{given}'\)"
    with pytest.raises(RunError, match=f"{message}: .*{advice}"):
        machine.gpu_index(local_rank)


def test_a_cpu_rank_is_named_cpu(context: RankContext) -> None:
    assert machine.device_name(context) == "cpu"


@pytest.mark.parametrize(("environ", "threads"), [
    pytest.param({}, 4, id="cores_are_shared"),
    pytest.param({"SLURM_CPUS_PER_TASK": "6"}, 6, id="slurm_gave_a_share"),
    pytest.param({"SLURM_CPUS_PER_TASK": "64"}, 8, id="never_more_than_usable"),
    pytest.param({"SLURM_CPUS_PER_TASK": "6", "SUBMITIT_EXECUTOR": "local"}, 4, id="local_in_a_slurm_job"),
])  # fmt: skip
def test_threads_follow_the_cores(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], threads: int) -> None:
    """Of 8 usable cores, 2 ranks get what Slurm gave each of them, and half otherwise."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    for name in ("SLURM_CPUS_PER_TASK", "SUBMITIT_EXECUTOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert machine.cpu_threads(2) == threads


def test_a_rank_names_its_software() -> None:
    """What it runs with and what the machine runs, without a framework being imported for it."""
    code = (
        "import json, sys; from pytest_llmbench.workloads.node.machine import versions; found = versions();"
        "frameworks = {'torch', 'megatron', 'deepspeed', 'transformers'};"
        "print(json.dumps([found, [*frameworks & {*sys.modules}]]))"
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    found, imported = json.loads(run.stdout)
    assert imported == []
    assert (found["python"], found["kernel"]) == (platform.python_version(), platform.release())
    assert found["torch"].startswith(version("torch"))
    there = {name for name in ("megatron-core", "deepspeed", "transformers") if name in found}
    assert {name: found[name] for name in there} == {name: version(name) for name in there}
    assert there == {name for name in ("megatron-core", "deepspeed", "transformers") if is_installed(name)}


def test_a_rank_of_a_gpu_names_its_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    nccl, cudnn = SimpleNamespace(version=lambda: (2, 27, 5)), SimpleNamespace(version=lambda: 91002)
    of_cuda = SimpleNamespace(
        version=SimpleNamespace(cuda="12.8"), cuda=SimpleNamespace(nccl=nccl), backends=SimpleNamespace(cudnn=cudnn)
    )
    monkeypatch.setitem(sys.modules, "torch", of_cuda)
    monkeypatch.setattr(machine, "installed", dict)
    found = machine.versions()
    assert (found["nccl"], found["cudnn"]) == ("2.27.5", "9.10.2")


@pytest.mark.parametrize(("number", "name"), [(8902, "8.9.2"), (90100, "9.1.0"), (91900, "9.19.0")])
def test_cudnn_numbers(number: int, name: str) -> None:
    """The number has another meaning from version 9 on."""
    assert machine._cudnn(number) == name


def is_installed(name: str) -> bool:
    try:
        return bool(version(name))
    except PackageNotFoundError:
        return False
