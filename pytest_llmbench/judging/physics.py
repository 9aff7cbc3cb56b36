"""The rates that a machine should reach, computed from facts that a program reads on it.

A share of what the facts allow is expected. Shares and tiers were taken from published and own measurements, which
`tests/data/physics/` has: all healthy values of them are above their FAIL values. They find gross faults, such as TCP
instead of InfiniBand, PCIe instead of NVLink, or one NIC of eight; a fault of less than about 15 % stays hidden.

Products are in TFLOP/s, ports in Gb/s, and all else in GB/s of 10**9 bytes.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple


class Tier(NamedTuple):
    """The expected share of the facts' product, and the shares of that below which to warn and to fail."""

    share: float
    warn: float
    fail: float


LAW: Mapping[str, Tier] = {
    # Power binds: with entries from N(0, 1) an H200 runs its products at 1400 to 1455 of 1980 MHz.
    "gemm_bf16": Tier(0.625, 0.93, 0.85),
    "gemm_fp16": Tier(0.605, 0.93, 0.85),
    "gemm_tf32": Tier(0.655, 0.93, 0.85),
    "gemm_fp32": Tier(0.763, 0.93, 0.85),
    "gemm_fp8": Tier(0.592, 0.93, 0.85),
    # The best shape, or a vendor's program.
    "best_bf16": Tier(0.73, 0.93, 0.85),
    "best_fp16": Tier(0.73, 0.93, 0.85),
    "best_fp8": Tier(0.64, 0.93, 0.85),
    # Compute capability 8.0, whose power binds less.
    "ampere_gemm": Tier(0.78, 0.93, 0.85),
    "ampere_best": Tier(0.84, 0.93, 0.85),
    "ampere_fp32": Tier(0.9, 0.93, 0.85),
    "triad": Tier(0.87, 0.93, 0.85),
    "copy": Tier(0.83, 0.93, 0.85),
    "host_copy": Tier(0.84, 0.90, 0.77),  # headers of packets of 256 B
    "c2c_to_device": Tier(0.80, 0.85, 0.75),
    "c2c_to_host": Tier(0.67, 0.85, 0.75),
    "ring": Tier(0.94, 0.85, 0.75),
    "ring_of_two": Tier(0.94 * 0.88, 0.85, 0.75),
    # NVLS: algorithm bandwidth is a constant share of the line rate, from 5 to 72 GPUs within 3 %.
    "nvls_4": Tier(0.605, 0.85, 0.75),
    "nvls_5": Tier(0.53, 0.85, 0.75),
    # A wide floor: 0.20 to 0.63 by peer access, switch and processor.
    "pcie": Tier(0.45, 0.25 / 0.45, 0.12 / 0.45),
    "port": Tier(0.965, 0.95, 0.85),
    # Headers: InfiniBand 0.95 to 0.97, EFA 0.93 to 0.955, TCPXO 0.946.
    "between": Tier(0.95, 0.90, 0.80),
    "behind_cpu": Tier(0.62, 0.90, 0.80),
    # EFA of p4d and p4de reaches no more.
    "efa_v1": Tier(0.80, 0.90, 0.80),
    "tree": Tier(0.95, 0.80, 0.80),
    "alltoall": Tier(0.85, 0.85, 0.70),
    "sendrecv": Tier(0.95, 0.85, 0.70),
    # A floor, of the NICs of one tray: two racks reach 4.3 times it, and twenty 2.1 times.
    "racks": Tier(0.95, 1.0, 0.80),
    "from_pairs": Tier(1.0, 0.90, 0.80),
    "from_pairs_of_many": Tier(0.95, 0.90, 0.80),
}
# Dense FLOP of an SM per clock. H100: 132 SMs x 4096 x 1830 MHz = 989 TFLOP/s, as its data sheet has it. Other
# capabilities are sold at full and at half rate.
_FLOP_PER_CLOCK: Mapping[str, Mapping[str, int]] = {
    "8.0": {"bf16": 2048, "fp16": 2048, "tf32": 1024, "fp32": 128},
    "9.0": {"bf16": 4096, "fp16": 4096, "tf32": 2048, "fp32": 256, "fp8": 8192},
    "10.0": {"bf16": 8192, "fp16": 8192, "tf32": 4096, "fp32": 256, "fp8": 16384},
    "10.3": {"bf16": 8192, "fp16": 8192, "tf32": 4096, "fp32": 256, "fp8": 16384},
}
_RATE_CUT = ("H20", "L20", "L2")  # sold with fewer products than their SMs and clock would make
# W, the least default limit of the boards whose products were measured. Power decides those of PCIe and NVL cards.
_LEAST_POWER: Mapping[str, float] = {"8.0": 390.0, "9.0": 650.0, "10.0": 900.0, "10.3": 1000.0}
_LOW_POWER = ("PCIe", "NVL", "A30")
# GB/s of a link of NVLink and direction: the data sheet's, and what NCCL reckons with, by generation.
NVLINK: Mapping[int, float] = {2: 25.0, 3: 25.0, 4: 25.0, 5: 50.0}
_RING_LINK: Mapping[int, float] = {2: 20.0, 3: 20.0, 4: 20.6, 5: 40.1}
NVLS_FROM: Mapping[int, int] = {4: 5, 5: 6}  # GPUs from which on NCCL takes NVLS, by the version of NVLink
_C2C = 450.0
PCIE_LANE: Mapping[int, float] = {3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
_NIC_OF_PCIE = 0.9  # of its slot's rate
LEAST_SIZE = 2**30
SMALL = "messages below 1 GiB have no law"
# Shares of the rate at 8 GiB, by the least size.
_SIZES = ((2**33, 1.0), (2**32, 0.95), (LEAST_SIZE, 0.80))
_MANY_DOMAINS = 8
_MOST_OF_ALLTOALL = 16
# Rings of many ranks take a step for each: with smaller parts of the message these are latency.
LEAST_PART = 2**24
# A curve whose last doubling of the size raised busbw by more is not saturated.
SATURATED = 0.03
_FURTHER_DOUBLINGS = 3


class Links(NamedTuple):
    """The NVLinks of a GPU."""

    version: int | None = None  # generation of NVLink; None without, or unknown
    links: int = 0
    nvls: bool = False  # whether the driver offers multicast: H200 without it reach the ring's rate


NO_LINKS = Links()


@dataclass(frozen=True, kw_only=True, slots=True)
class PhysicsBound:
    """The expected value of one measurement, and how it was computed."""

    expected: float
    warn: float  # below it, a hint
    fail: float  # below it, a fault
    unit: str
    how: str

    def scaled(self, factor: float, how: str) -> "PhysicsBound":
        """Multiply the expectation and both bounds."""
        return replace(self, expected=factor * self.expected, warn=factor * self.warn, fail=factor * self.fail, how=how)

    def __str__(self) -> str:
        return f"{self.expected:.4g} {self.unit}, FAIL below {self.fail:.4g}: {self.how}"


@dataclass(frozen=True, slots=True)
class NoLaw:
    """The reason why physics leaves a measurement unjudged."""

    reason: str

    def __str__(self) -> str:
        return f"not judged by physics: {self.reason}"


PhysicsResult = PhysicsBound | NoLaw


def _expect(name: str, product: float, unit: str, facts: str, share: float = 1.0) -> PhysicsBound:
    tier = LAW[name]
    expected = share * tier.share * product
    return PhysicsBound(
        expected=expected, warn=tier.warn * expected, fail=tier.fail * expected, unit=unit,
        how=f"{share * tier.share:.3g} of {facts}",
    )  # fmt: skip


def unknown(what: str, value: object) -> NoLaw:
    """A missing fact, or one outside of the tables."""
    return NoLaw(f"{what} of this hardware is not known" if value is None else f"unknown hardware: {what} {value}")


def expect_products(
    name: str,
    capability: str | None,
    sms: int | None,
    max_sm_mhz: int | None,
    dtype: str,
    program: str = "gemm",
    default_power_w: float | None = None,
) -> PhysicsResult:
    """Dense matrix products of one GPU, TFLOP/s. `program` is `gemm`, entries from N(0, 1), or `best`, the best shape.

    A lowered power limit is a fault of its own, and leaves the law as it is.
    """
    low = default_power_w is not None and default_power_w < _LEAST_POWER.get(capability or "", 0.0)
    if low or any(word in name.split() for word in _LOW_POWER):
        return NoLaw(f"the power of {name} decides its products, not its clock")
    if any(cut in name.split() or f"{cut}-" in name for cut in _RATE_CUT):
        return NoLaw(f"the products of {name} are cut")
    rates = _FLOP_PER_CLOCK.get(capability or "")
    if rates is None:
        return unknown("compute capability", capability)
    rate = rates.get(dtype)
    tier = f"{program}_{dtype}"
    if capability == "8.0":
        tier = "ampere_fp32" if dtype == "fp32" else f"ampere_{program}"
    if rate is None or tier not in LAW:
        return NoLaw(f"no law for {dtype} at compute capability {capability}")
    if not sms or not max_sm_mhz:
        return unknown("number of SMs or their clock", None)
    peak = sms * rate * max_sm_mhz * 1e6 / 1e12
    return _expect(tier, peak, "TFLOP/s", f"{sms} SMs × {rate} × {max_sm_mhz} MHz = {peak:.0f} TFLOP/s")


def expect_memory(
    bus_bits: int | None, max_mhz: int | None, kind: str = "triad", capability: str | None = "9.0"
) -> PhysicsResult:
    """A GPU's own memory; `kind` is `triad` or `copy`. The law is for HBM."""
    if capability not in _FLOP_PER_CLOCK:
        return unknown("compute capability", capability)
    if not bus_bits or not max_mhz:
        return unknown("memory bus or clock", None)
    peak = bus_bits / 8 * max_mhz * 1e6 * 2 / 1e9
    return _expect(kind, peak, "GB/s", f"{bus_bits} bit × {max_mhz} MHz × 2 = {peak:.0f} GB/s")


def rate_of_pcie(gen: int | None, width: int | None) -> float:
    """Rate of a PCIe link in one direction, GB/s; 0 for an unknown generation or width."""
    return PCIE_LANE.get(gen or 0, 0.0) * (width or 0)


def expect_host_copy(gen: int | None, width: int | None, *, c2c: bool = False, to_device: bool = True) -> PhysicsResult:
    """A copy between pinned memory and one GPU at a time; `gen` and `width` are the most that GPU and slot can do."""
    if c2c:
        return _expect("c2c_to_device" if to_device else "c2c_to_host", _C2C, "GB/s", "NVLink-C2C's 450 GB/s")
    if not (peak := rate_of_pcie(gen, width)):
        return unknown("PCIe generation", gen)
    return _expect("host_copy", peak, "GB/s", f"PCIe {gen}.0 ×{width} = {peak:.1f} GB/s")


def expect_in_domain(collective: str, gpus: int, inside: Links) -> PhysicsResult:
    """A collective within one NVLink domain: a node, or the nodes of an NVL72 rack."""
    version, links, nvls = inside
    if version is None or version not in _RING_LINK:
        return unknown("NVLink", version)
    if collective == "all_reduce" and nvls and gpus >= NVLS_FROM.get(version, gpus + 1):
        line = NVLINK[version] * links
        facts = f"{links} NVLinks × {NVLINK[version]:g} GB/s × 2({gpus}-1)/{gpus}, as NVLS does"
        return _expect(f"nvls_{version}", line * 2 * (gpus - 1) / gpus, "GB/s", facts)
    facts = f"{links} NVLinks × {_RING_LINK[version]:g} GB/s, as rings do"
    tier = "ring_of_two" if gpus == 2 and collective != "all_reduce" else "ring"
    return _expect(tier, _RING_LINK[version] * links, "GB/s", facts)


def expect_in_pcie_node(gen: int | None, width: int | None) -> PhysicsResult:
    """A collective of GPUs that only PCIe joins."""
    if not (peak := rate_of_pcie(gen, width)):
        return unknown("PCIe generation", gen)
    return _expect("pcie", peak, "GB/s", f"PCIe {gen}.0 ×{width} = {peak:.1f} GB/s, a wide floor")


def rate_of_port(rate_gbits: float, gen: int | None = None, width: int | None = None) -> float:
    """The rate of a port, at most what its own PCIe link carries, Gb/s."""
    return min(rate_gbits, rate_of_pcie(gen, width) * 8 * _NIC_OF_PCIE or rate_gbits)


def expect_port(rate_gbits: float, gen: int | None = None, width: int | None = None) -> PhysicsBound:
    """One port by perftest: two queue pairs or more, messages of 1 MiB or more."""
    rate = rate_of_port(rate_gbits, gen, width)
    return _expect("port", rate, "Gb/s", f"{rate:g} Gb/s")


def expect_between(
    collective: str,
    domains: int,
    gpus_per_domain: int,
    net: float,
    inside: Links = NO_LINKS,
    *,
    share: str = "between",
    net_of: str = "",
) -> PhysicsResult:
    """A collective between NVLink domains: nodes, or racks. `net` is the rate of all NICs of one domain, GB/s.

    `share` is the tier of its NICs: `between`, `behind_cpu` or `efa_v1`. The law is for full bisection. An all_reduce
    of two domains may go by trees, each byte once each way, up to what the links `inside` allow.
    """
    ranks = domains * gpus_per_domain
    facts = net_of or f"NICs of {net:.4g} GB/s"
    if collective == "alltoall":
        if domains > _MOST_OF_ALLTOALL:
            return NoLaw(f"no alltoall of more than {_MOST_OF_ALLTOALL} nodes is known")
        # A GPU reaches the others of its domain without a NIC.
        crossing = (ranks - 1) / (ranks - gpus_per_domain) * net / gpus_per_domain
        far = f"({ranks}-1)/({ranks}-{gpus_per_domain})"
        return _expect("alltoall", crossing, "GB/s", f"a GPU's share of {facts} × {far}")
    if collective == "sendrecv":
        part = LAW[share].share / LAW["between"].share
        return _expect("sendrecv", net / gpus_per_domain, "GB/s", f"a GPU's share of {facts}", part)
    version, links, nvls = inside
    ring = _RING_LINK.get(version or 0, math.inf) * links if links else math.inf
    by_nvls = math.inf
    if nvls and version is not None and version in NVLS_FROM:
        by_nvls = LAW[f"nvls_{version}"].share * NVLINK[version] * links * 2 * (ranks - 1) / ranks
    by_ring = min(net, ring)
    if collective == "all_reduce" and domains > 2 and by_nvls < math.inf:
        by_ring = min(net, by_nvls / LAW[share].share)
    floor = _expect(share, by_ring, "GB/s", facts if by_ring == net else f"{by_ring:.4g} GB/s inside a domain")
    if collective != "all_reduce" or domains != 2:
        return floor
    within = by_nvls if by_nvls < math.inf else ring * LAW["ring"].share
    tree = max(floor.expected, min(LAW[share].share * net * 2 * (ranks - 1) / ranks, within))
    how = f"{facts} by trees, × 2({ranks}-1)/{ranks}, at most {within:.4g} GB/s; FAIL by rings"
    return replace(floor, expected=tree, warn=LAW["tree"].warn * tree, how=how)


def expect_racks(net_of_tray: float) -> PhysicsBound:
    """NVL72 racks together: a floor, which the NICs of one tray could carry alone."""
    return _expect("racks", net_of_tray, "GB/s", f"one tray's NICs of {net_of_tray:.4g} GB/s, a floor")


def expect_from_pairs(pair: float, domains: int) -> PhysicsBound:
    """All nodes from the median pair, if pairs were measured by rings: all_gather, reduce_scatter, or by NCCL_ALGO."""
    tier = "from_pairs" if domains <= _MANY_DOMAINS else "from_pairs_of_many"
    return _expect(tier, pair, "GB/s", f"the median pair's {pair:.4g} GB/s")


def at_size(size: int, expected: PhysicsResult) -> PhysicsResult:
    """The expectation at a message size, bytes."""
    if isinstance(expected, NoLaw):
        return expected
    share = next((share for least, share in _SIZES if size >= least), None)
    if share is None:
        return NoLaw(SMALL)
    return expected if share == 1.0 else expected.scaled(share, f"{share:g} for its size of {expected.how}")


def oversubscribed(expected: PhysicsResult, factor: float) -> PhysicsResult:
    """The expectation of a fabric whose uplinks carry one part in `factor` of the rates of all NICs."""
    if isinstance(expected, NoLaw) or factor == 1.0:
        return expected
    return expected.scaled(1 / factor, f"{expected.how}, oversubscribed {factor:g} : 1")


def growth_of_doubling(smaller: tuple[int, float], larger: tuple[int, float]) -> float:
    """The growth of busbw from one size to a larger one, as a fraction for each doubling; both are size and busbw."""
    return float((larger[1] / smaller[1]) ** (1 / math.log2(larger[0] / smaller[0])) - 1)


def of_parts(expected: PhysicsResult, size: int, ranks: int, growth: float | None) -> PhysicsResult:
    """The expectation for an operation of equal parts, without a law for small ones unless the `growth` is known."""
    if growth is None and size < LEAST_PART * ranks:
        return NoLaw(f"each of {ranks} ranks has a part of {size / ranks / 2**20:.3g} MiB, which is latency")
    return expected


def unsaturated(expected: PhysicsResult, growth: float | None) -> PhysicsResult:
    """Lower the FAIL value of a curve that still rises at its largest size, where latency is a part of the time.

    A value that fails then would fail at eight times the size, too, if each doubling added as much as the last.
    """
    if isinstance(expected, NoLaw) or growth is None or growth < SATURATED:
        return expected
    how = f"{expected.how}; not saturated: the last doubling of the size added {growth:.1%}, so that FAIL is lower"
    return replace(expected, fail=expected.fail / (1 + growth) ** _FURTHER_DOUBLINGS, how=how)
