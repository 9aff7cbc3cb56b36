"""The hardware of a node: facts of its driver and kernel, from which physics computes the rates that it should reach.

They are maxima: current values fall when a GPU idles, and a link that trained down must leave the expectation as it is.
"""

from collections.abc import Mapping

from pydantic import NonNegativeFloat, NonNegativeInt

from pytest_llmbench.core.wire.answers import ProbeAnswer


class MachineFabric(ProbeAnswer):
    """A GPU's registration with the NVLink fabric of its node or rack."""

    state: NonNegativeInt  # 0 not supported, 1 not started, 2 in progress, 3 completed
    status: NonNegativeInt  # the result of the registration as NVML's code; 0 is success, and counts once completed
    cluster_uuid: str  # in hexadecimal; zeros outside of a rack
    clique_id: NonNegativeInt
    health_mask: NonNegativeInt | None = None


class MachineGpu(ProbeAnswer):
    """A GPU; None for a fact that its driver lacks."""

    name: str
    bus: str  # its PCI address
    capability: str | None = None  # such as `9.0`
    sms: NonNegativeInt | None = None
    max_sm_mhz: NonNegativeInt | None = None
    max_memory_mhz: NonNegativeInt | None = None
    bus_bits: NonNegativeInt | None = None  # width of its memory's bus; 0 for unified memory
    own_pcie_gen: NonNegativeInt | None = None  # the most that the GPU can do
    pcie_gen: NonNegativeInt | None = None  # the most that the GPU and its slot can do
    pcie_width: NonNegativeInt | None = None  # likewise
    c2c: bool = False  # whether NVLink-C2C joins it to its CPU
    mig: bool = False
    power_limit_w: NonNegativeFloat | None = None  # in force
    default_power_limit_w: NonNegativeFloat | None = None
    nvlink_version: NonNegativeInt | None = None  # its generation, such as 4
    nvlinks: NonNegativeInt = 0  # active ones
    nvswitch: bool = False  # whether one of them ends at a switch
    multicast: bool | None = None  # whether its driver offers NVLink multicast, which NVLS needs
    fabric: MachineFabric | None = None


class GpuPath(ProbeAnswer):
    """The way between the process of a rank and its GPU."""

    far: bool = False  # whether all cores on which it may run are on another socket than the GPU
    pcie_gen: NonNegativeInt | None = None  # of the GPU's link at this moment
    pcie_width: NonNegativeInt | None = None


class MachinePort(ProbeAnswer):
    """A port of an RDMA device, as sysfs shows it."""

    device: str  # such as `mlx5_0`
    port: NonNegativeInt
    bus: str | None = None  # PCI address of its device
    root_port: str | None = None  # PCI address of the root port that it is below; None directly at the processor
    model: str = ""  # PCI vendor and device
    card: str | None = None  # kind of the card, such as `MT_0000000838`: ports of one kind are alike
    board: str = ""  # the same for all functions of one board
    virtual: bool = False  # whether it is a virtual function whose physical one is in sight
    rate_gbits: NonNegativeFloat | None = None  # a port that is down reports 10
    lanes: NonNegativeInt | None = None
    state: str = ""  # such as `ACTIVE`
    phys_state: str = ""  # such as `LinkUp`
    link_layer: str = ""  # `InfiniBand`, `Ethernet`, or another word for EFA
    pcie_gen: NonNegativeInt | None = None  # the most that the card can do
    pcie_width: NonNegativeInt | None = None
    slot: str | None = None  # its PCIe link now, `32.0 GT/s x16`
    pkeys: tuple[str, ...] = ()  # its partitions
    counters: Mapping[str, NonNegativeInt] = {}  # by the names of sysfs

    @property
    def name(self) -> str:
        """Device and port, as in `mlx5_0/1`."""
        return f"{self.device}/{self.port}"

    @property
    def active(self) -> bool:
        """True if it can carry data."""
        return self.state == "ACTIVE"

    @property
    def kind(self) -> tuple[str | None, str]:
        """The kind of its card and its link layer, which its siblings share."""
        return self.card, self.link_layer

    @property
    def sent_bytes(self) -> int:
        """Bytes sent since the counters began; `port_xmit_data` counts words."""
        return self.counters.get("tx_bytes", 4 * self.counters.get("port_xmit_data", 0))


class MachineFacts(ProbeAnswer):
    """A node."""

    product: str | None = None  # the name that its firmware gives the machine; on EC2 the type of the instance
    virtual: bool = False  # whether it is a virtual machine, which hides the slots and switches of its devices
    cpu_pcie_gen: NonNegativeInt | None = None  # the most that its processor can do; None for one that is not known
    gpus: tuple[MachineGpu, ...] = ()  # those that this process sees, in NVML's order
    # Root port of every NVIDIA GPU of the node by its PCI address, also of those that this job has not.
    root_ports: Mapping[str, str | None] = {}
    joined: bool | None = None  # whether NVLink joins all GPUs in pairs; None for one GPU, and where it is not known
    ports: tuple[MachinePort, ...] = ()
    # InfiniBand and EFA cards without an RDMA device, by PCI address, with their driver; None where none has them.
    driverless: Mapping[str, str | None] = {}
    write_bw: bool = False  # whether perftest's `ib_write_bw` is installed
    acs: tuple[str, ...] | None = None  # PCI bridges that redirect traffic between devices; None for all but root
    trouble: str | None = None  # the reason for missing GPUs

    @property
    def own_ports(self) -> tuple[MachinePort, ...]:
        """The ports without virtual functions; one card whose functions share a port has it once.

        Two ports of a card are two functions of one address; with Socket Direct it has two addresses.
        """
        ports: dict[object, MachinePort] = {}
        for port in self.ports:
            board = (port.board, (port.bus or "").rpartition(".")[2], port.port)
            if not port.virtual:
                ports.setdefault(board if port.board.strip("0:") else port.name, port)
        return tuple(ports.values())

    def near(self, port: MachinePort) -> bool:
        """True if a port and a GPU are below one root port: PIX or PXB in nvidia-smi's words."""
        return port.root_port is not None and port.root_port in self.root_ports.values()
