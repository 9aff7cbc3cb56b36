"""The hardware of this node: GPUs by NVML, and by CUDA what NVML lacks; NICs by sysfs."""

import ctypes
import importlib
import os
import re
import shutil
import struct
from collections.abc import Callable, Iterable
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from pytest_llmbench.core.errors import RunError
from pytest_llmbench.core.files import read_text
from pytest_llmbench.core.wire.machine import GpuPath, MachineFabric, MachineFacts, MachineGpu
from pytest_llmbench.readers.pci import pci_address
from pytest_llmbench.workloads.node.machine import gpu_identity
from pytest_llmbench.workloads.node.rdma import find_driverless, read_ports, root_port
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.probe import ProbeLog

_NVIDIA, _GPU_CLASSES = "0x10de", ("0x0300", "0x0302")
_BRIDGE = "0x0604"
_EXTENDED, _ACS = 0x100, 0x000D
# Request and completion redirect: traffic between two devices goes up to the root complex and down again.
_REDIRECT = 0x4 | 0x8
# The last model of a processor's vendor and family with a generation of PCIe, in ascending order. A switch between GPU
# and processor may be faster than this, and NVML and a virtual machine show the switch.
_CPUS = {
    ("GenuineIntel", 6): ((85, 3), (108, 4)),  # Cascade Lake, Ice Lake
    ("AuthenticAMD", 23): ((1, 3), (49, 4)),  # Naples, Rome
    ("AuthenticAMD", 25): ((1, 4), (17, 5)),  # Milan, Genoa
}
_VIRTUAL = re.compile(r"QEMU|KVM|VMware|VirtualBox|Virtual Machine|HVM|Xen|Google Compute Engine", re.IGNORECASE)
# Generations of NVLink by NVML's numbers: 6 is NVLink 4.
_NVLINKS = {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 5, 8: 6}
_MOST_LINKS, _SWITCH = 72, 2
# CUDA's number of the attribute, which NCCL reads, too.
_MULTICAST_SUPPORTED = 132
NvmlValue = TypeVar("NvmlValue")


def facts(context: RankContext, log: ProbeLog) -> MachineFacts:
    """Answer with the hardware of this node: its GPUs, if the step has them, and its RDMA ports.

    `config`: `sysfs`, where sysfs is mounted, `$VARIABLES` replaced.
    """
    log.phase("sysfs")
    root = Path(os.path.expandvars(context.config["sysfs"]))
    product, cpu = read_text(root / "class/dmi/id/product_name"), read_text(Path("/proc/cpuinfo")) or ""
    root_ports = {card.name: root_port(card) for card in sorted((root / "bus/pci/devices").glob("*")) if _is_gpu(card)}
    ports = tuple(read_ports(root))
    log.phase("NVML")
    gpus, joined, trouble = ((), None, None) if context.device == "cpu" else read_gpus()
    return MachineFacts(
        product=product, virtual=_is_virtual(product, cpu), cpu_pcie_gen=find_cpu_pcie_gen(cpu), gpus=gpus,
        root_ports=root_ports, joined=joined, ports=ports, driverless=find_driverless(root),
        acs=redirecting_bridges(root), write_bw=shutil.which("ib_write_bw") is not None, trouble=trouble,
    )  # fmt: skip


def read_gpus() -> tuple[tuple[MachineGpu, ...], bool | None, str | None]:
    """The GPUs of this process, whether NVLink joins all of them, and the reason for missing ones."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return (), None, "nvidia-ml-py is not installed: pip install 'pytest-llmbench[torch]'"
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        multicast = read_multicast()
        gpus = tuple(_read_gpu(nvml, handle, multicast) for handle in handles)
        joined = _read_joined(nvml, handles)
        nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        return (), None, f"NVML: {error}"
    return gpus, joined, None


def _read_gpu(nvml: ModuleType, handle: Any, multicast: dict[str, bool]) -> MachineGpu:
    def ask(name: str, *args: Any) -> Any:
        return _ask(nvml, lambda: getattr(nvml, name)(handle, *args))

    bus = pci_address(str(getattr(ask("nvmlDeviceGetPciInfo"), "busId", "")))
    capability, cores = ask("nvmlDeviceGetCudaComputeCapability"), ask("nvmlDeviceGetNumGpuCores")
    limits = (ask("nvmlDeviceGetEnforcedPowerLimit"), ask("nvmlDeviceGetPowerManagementDefaultLimit"))
    limit_w, default_w = (None if limit is None else limit / 1000 for limit in limits)
    links = [link for link in range(_MOST_LINKS) if ask("nvmlDeviceGetNvLinkState", link) == 1]
    version = ask("nvmlDeviceGetNvLinkVersion", links[0]) if links else None
    c2c = ask("nvmlDeviceGetC2cModeInfoV") if hasattr(nvml, "nvmlDeviceGetC2cModeInfoV") else None
    return MachineGpu(
        name=str(ask("nvmlDeviceGetName")), bus=bus,
        capability=None if capability is None else "{}.{}".format(*capability),
        sms=None if cores is None or capability is None else cores // (64 if tuple(capability) == (8, 0) else 128),
        max_sm_mhz=ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
        max_memory_mhz=ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_MEM),
        bus_bits=ask("nvmlDeviceGetMemoryBusWidth"), own_pcie_gen=ask("nvmlDeviceGetGpuMaxPcieLinkGeneration"),
        pcie_gen=ask("nvmlDeviceGetMaxPcieLinkGeneration"), pcie_width=ask("nvmlDeviceGetMaxPcieLinkWidth"),
        c2c=bool(c2c is not None and c2c.isC2cEnabled), mig=(ask("nvmlDeviceGetMigMode") or [0])[0] == 1,
        power_limit_w=limit_w, default_power_limit_w=default_w, nvlinks=len(links),
        nvlink_version=None if version is None else _NVLINKS.get(version, version),
        nvswitch=any(ask("nvmlDeviceGetNvLinkRemoteDeviceType", link) == _SWITCH for link in links),
        multicast=multicast.get(bus), fabric=_read_fabric(nvml, handle),
    )  # fmt: skip


def read_path(context: RankContext, root: Path = Path("/sys")) -> GpuPath:
    """The present path between this process and its GPU; empty on a CPU, and if NVML is silent."""
    if (own := _find_own_gpu(context)) is None:
        return GpuPath()
    nvml, handle, bus = own
    gen = _ask(nvml, lambda: nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle))
    width = _ask(nvml, lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle))
    nvml.nvmlShutdown()
    return GpuPath(far=is_far(bus, os.sched_getaffinity(0), root), pcie_gen=gen, pcie_width=width)


def bind_far(context: RankContext, root: Path = Path("/sys")) -> None:
    """Simulate the fault `far-cores`: bind this process to the cores of a socket that its GPU is not on.

    Raises RunError if it has no GPU, or may run on no other socket.
    """
    sockets: dict[str | None, set[int]] = {}
    for core in os.sched_getaffinity(0):
        sockets.setdefault(_socket_of(core, root), set()).add(core)
    own = _find_own_gpu(context)
    far = [cores for cores in sockets.values() if own is not None and is_far(own[2], cores, root)]
    if not far:  #: error not_struck: the simulated fault `far-cores` needs a GPU, and cores of another socket
        raise RunError("not_struck", "far-cores: this rank has no GPU, or no cores of another socket than its GPU's")
    os.sched_setaffinity(0, far[0])


def _find_own_gpu(context: RankContext) -> tuple[ModuleType, Any, str] | None:
    """NVML, which is open then, with the handle and the PCI address of the rank's GPU; None without these."""
    uuid = gpu_identity(context)
    if uuid is None:
        return None
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # noqa: BLE001 - a border: without NVML the way stays unknown
        return None
    handle = _ask(nvml, lambda: nvml.nvmlDeviceGetHandleByUUID(uuid))
    return nvml, handle, pci_address(str(getattr(_ask(nvml, lambda: nvml.nvmlDeviceGetPciInfo(handle)), "busId", "")))


def is_far(bus: str, cores: Iterable[int], root: Path) -> bool:
    """Whether none of some cores is on the socket of a PCI device; false where sysfs leaves it open."""
    ranges = re.findall(r"(\d+)(?:-(\d+))?", read_text(root / "bus/pci/devices" / bus / "local_cpulist") or "")
    near = {core for first, last in ranges for core in range(int(first), int(last or first) + 1)}
    sockets = [{_socket_of(core, root) for core in group} - {None} for group in (near, cores)]
    return all(sockets) and not sockets[0] & sockets[1]


def _socket_of(core: int, root: Path) -> str | None:
    return read_text(root / f"devices/system/cpu/cpu{core}/topology/physical_package_id")


def _ask(nvml: ModuleType, what: Callable[[], NvmlValue]) -> NvmlValue | None:
    """The result of a function of NVML; None where the GPU, the driver or the module lacks it."""
    try:
        return what()
    except (nvml.NVMLError, AttributeError):
        return None


def _read_fabric(nvml: ModuleType, handle: Any) -> MachineFabric | None:
    def ask() -> Any:
        info = nvml.c_nvmlGpuFabricInfoV_t()
        nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
        return info

    info = _ask(nvml, ask)
    if info is None or info.state == nvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED:
        return None
    return MachineFabric(
        state=info.state, status=info.status, cluster_uuid=bytes(info.clusterUuid).hex(), clique_id=info.cliqueId,
        health_mask=info.healthMask,
    )  # fmt: skip


def _read_joined(nvml: ModuleType, handles: list[Any]) -> bool | None:
    index, joined = nvml.NVML_P2P_CAPS_INDEX_NVLINK, []
    for one, two in combinations(handles, 2):
        status = _ask(nvml, lambda pair=(one, two): nvml.nvmlDeviceGetP2PStatus(*pair, index))  # type: ignore[misc]
        if status is None:
            return None
        joined.append(status == nvml.NVML_P2P_STATUS_OK)
    return all(joined) if joined else None


def read_multicast() -> dict[str, bool]:
    """Whether each GPU offers NVLink multicast, by its PCI address; empty without CUDA's driver."""
    found: dict[str, bool] = {}
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return found
    count, device, value, address = ctypes.c_int(), ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(32)
    if cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return found
    for number in range(count.value):
        failed = cuda.cuDeviceGet(ctypes.byref(device), number)
        failed = failed or cuda.cuDeviceGetPCIBusId(address, len(address), device)
        if not failed and cuda.cuDeviceGetAttribute(ctypes.byref(value), _MULTICAST_SUPPORTED, device) == 0:
            found[pci_address(address.value.decode())] = value.value == 1
    return found


def _is_gpu(card: Path) -> bool:
    return read_text(card / "vendor") == _NVIDIA and (read_text(card / "class") or "").startswith(_GPU_CLASSES)


def _is_virtual(product: str | None, cpu: str) -> bool:
    hypervisor = re.search(r"^flags\s*:.* hypervisor\b", cpu, re.MULTILINE)
    return hypervisor is not None or bool(product and _VIRTUAL.search(product))


def find_cpu_pcie_gen(cpu: str) -> int | None:
    """The generation of PCIe of a server's processor, by `/proc/cpuinfo`; None for one that the table lacks."""
    facts = dict(re.findall(r"^(vendor_id|cpu family|model)\s*: (\S+)$", cpu, re.MULTILINE))
    try:
        family, model = int(facts["cpu family"]), int(facts["model"])
    except (KeyError, ValueError):
        return None
    known = _CPUS.get((facts.get("vendor_id", ""), family), ())
    return next((generation for last, generation in known if model <= last), None)


def redirecting_bridges(root: Path) -> tuple[str, ...] | None:
    """Addresses of PCI bridges that redirect traffic between devices; None where only root could read it."""
    bridges, unread = [], False
    for device in sorted((root / "bus/pci/devices").glob("*")):
        if (read_text(device / "class") or "").startswith(_BRIDGE):
            try:
                space = (device / "config").read_bytes()
            except OSError:
                space = b""
            unread |= len(space) <= _EXTENDED
            if acs_control(space) & _REDIRECT:
                bridges.append(device.name)
    return None if unread and not bridges else tuple(bridges)


def acs_control(space: bytes) -> int:
    """The control register of Access Control Services in a PCI device's configuration space; 0 without one."""
    at, seen = _EXTENDED, set[int]()
    while _EXTENDED <= at <= len(space) - 8 and at not in seen:
        seen.add(at)
        (header,) = struct.unpack_from("<I", space, at)
        if header & 0xFFFF == _ACS:
            return int(struct.unpack_from("<H", space, at + 6)[0])
        at = header >> 20
    return 0
