"""Checks judge by what physics expects of the machine: on recorded rates of healthy nodes, and of faults."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from pytest_llmbench.checks.base import CheckSettings, Probe, Site, get_check
from pytest_llmbench.checks.collectives.check import judge
from pytest_llmbench.checks.machine import Machines, domain_of
from pytest_llmbench.cluster.system import System, load_system
from pytest_llmbench.core.paths import shipped
from pytest_llmbench.core.recipe.environments import Network
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.curves import Curve, Point, Timing
from pytest_llmbench.core.record.health import Reading, Report, Severity
from pytest_llmbench.core.wire.machine import MachineFabric, MachineFacts
from pytest_llmbench.judging.physics import NoLaw, PhysicsBound
from tests.support.fleet import AnsweringFleet
from tests.support.hardware import GPUS, node
from tests.support.references import reference

GIB = 2**30
SYSTEMS = [load_system(str(path), []) for path in sorted(shipped("systems").glob("*.yaml"))]


def fleet_of(
    site: Site, facts: Mapping[str, MachineFacts | str], usual: Mapping[str, Any] | None = None
) -> AnsweringFleet:
    """Nodes of known hardware whose ranks give one answer to all other probes."""

    def answer(probe: Probe, host: str, _: int) -> Mapping[str, Any] | str:
        if probe.name != "machine":
            return usual or {}
        own = facts[host]
        return own if isinstance(own, str) else own.model_dump(mode="json")

    return AnsweringFleet(site, tuple(facts), answer)


def site_of(gpus: int = 4, nodes: int = 1, **changes: Any) -> Site:
    return Site(**{"system": "test", "nodes": nodes, "gpus_per_node": gpus, **changes})


def rates_of(**gemm: float) -> dict[str, Any]:
    """The answer of a healthy H200, but for some products."""
    products = {"rate": 680e12, "digest": "1", "repeated": 17, "changed": 0, "error": 1e-5}
    rates = {"bf16": 670e12, "fp16": 650e12, "fp32": 51e12, "tf32": 350e12, "fp8": 1270e12, **gemm}
    return {
        "device": "NVIDIA H200", "setting": {}, "memory": 4.36e12,
        "gemm": {
            "side": 8192, "factors": "f", "lacking": {},
            "precisions": {precision: {**products, "rate": rate} for precision, rate in rates.items()},
        },
        "host_device": {
            "host_to_device": 55.4e9, "device_to_host": 55.1e9, "host_to_device_all": 41.8e9, "device_to_host_all": 33e9
        },
    }  # fmt: skip


def rated(name: str, facts: MachineFacts | str, **changes: Any) -> Report:
    """Judge the rates of a node with two GPUs that are those of a healthy H200, but for some."""
    usual = rates_of(**changes.pop("gemm", {}))
    return get_check(name).run(fleet_of(site_of(2), {"a": facts}, {**usual, **changes}), CheckSettings())


def kinds(report: Report) -> set[tuple[str, Severity]]:
    return {(finding.kind, finding.severity) for finding in report.findings}


FAULT, HINT = {("below_physics", Severity.ISOLATE)}, {("below_physics", Severity.MONITOR)}


@pytest.mark.parametrize(("name", "changes", "expected"), [
    ("gemm", {}, set()),
    ("gemm", {"gemm": {"bf16": 610e12}}, HINT),
    ("gemm", {"gemm": {"bf16": 194e12}}, FAULT),
    ("memory_bandwidth", {}, set()),
    ("memory_bandwidth", {"memory": 3.5e12}, FAULT),
    ("host_device_bandwidth", {}, set()),
    ("host_device_bandwidth", {"host_device": dict.fromkeys(
        ("host_to_device", "device_to_host", "host_to_device_all", "device_to_host_all"), 27.5e9)}, FAULT),
])  # fmt: skip
def test_rates_of_a_gpu(name: str, changes: dict[str, Any], expected: set[tuple[str, Severity]]) -> None:
    report = rated(name, node("H200", 2), **changes)
    assert kinds(report) == expected
    assert not report.unbounded
    assert report.evidence["machines"][0]["hosts"] == ["a"]
    assert all("physics" in line for line in report.bounds)
    assert {line.partition(":")[0] for line in report.bounds} == {each.statistic for each in report.readings}


@pytest.mark.parametrize(("tflops", "expected"), [(1450.0, set()), (1200.0, HINT), (1000.0, FAULT)])
def test_the_fastest_shape_of_a_gpu(tflops: float, expected: set[tuple[str, Severity]]) -> None:
    """In bf16 it is 0.73 of what clock and SMs allow, in fp8 0.64; a scale for each row has no law."""
    rates = {"bf16": 780.0, "fp8": tflops, "fp8_rowwise": 900.0}
    sweeps = {
        name: {"curve": [shape], "best": shape, "left_out": 0}
        for name, rate in rates.items()
        for shape in [[2048, 4096, 8192, rate * 1e12, rate * 1e12, 0.01]]
    }
    usual = fleet_of(site_of(2), {"a": node("H200", 2)}, rates_of())
    swept = {"device": "NVIDIA H200", "products": sweeps, "lacking": {}}
    fleet = replace(usual, answer=lambda probe, *at: swept if probe.name == "sweep" else usual.answer(probe, *at))
    report = get_check("gemm").run(fleet, CheckSettings(options={"sweep_s": 3}))
    assert kinds(report) == expected
    assert "best_fp8: physics expects 1370 TFLOP/s, FAIL below 1165: 0.64 of 132 SMs × 8192 × 1980 MHz" in "\n".join(
        report.bounds
    )
    assert "best_fp8_rowwise: not judged by physics: no law for fp8_rowwise" in "\n".join(report.bounds)


@pytest.mark.parametrize(("facts", "reason"), [
    ("died in phase `NVML`", "a: rank 0: died in phase `NVML`"),
    (MachineFacts(trouble="NVML: Driver Not Loaded"), "a: NVML: Driver Not Loaded"),
    (node("H200", 2, each={"mig": True}), "MIG"),
    (node("H200", 2, each={"capability": "12.0"}), "unknown hardware: compute capability 12.0"),
])  # fmt: skip
def test_hardware_that_physics_does_not_know_never_fails(facts: MachineFacts | str, reason: str) -> None:
    report = rated("gemm", facts, gemm=dict.fromkeys(("bf16", "fp16", "tf32", "fp8", "fp32"), 1e12))
    assert not report.findings
    assert report.unbounded
    assert all("not judged by physics: " in line and reason in line for line in report.bounds)


def curve_of(name: str, busbw: float, ranks: int, sizes: Sequence[int] = (GIB, 2 * GIB, 4 * GIB, 8 * GIB)) -> Curve:
    flat = Timing(time_us=9.0, algbw=busbw, busbw=busbw, wrong=0)
    points = [Point(size=size, count=size // 4, dtype="float32", in_place=flat) for size in sizes]
    return Curve(collective=name, points=tuple(points), ranks=ranks, complete=True)


def judged(curve: Curve, facts: Mapping[str, MachineFacts], *references: Reference, **site: Any) -> Report:
    gpus = len(next(iter(facts.values())).gpus)
    fleet = fleet_of(site_of(gpus, len(facts), **site), facts)
    settings = CheckSettings(references=references)
    return judge(curve, settings, fleet, "NVIDIA H200", {}, machines=Machines.ask(fleet))


def without_multicast(gpus: int) -> MachineFacts:
    return node("H200", gpus, each={"multicast": False})


@pytest.mark.parametrize(("name", "gpus", "healthy", "without_p2p"), [
    ("all_reduce", 4, 365.1, 29.3), ("all_gather", 4, 346.8, 29.4), ("sendrecv", 4, 365.3, 21.3),
    ("all_reduce", 8, 359.5, 29.0), ("alltoall", 8, 344.8, 29.0), ("all_gather", 2, 292.4, 29.0),
])  # fmt: skip
def test_pcie_in_place_of_nvlink_fails(name: str, gpus: int, healthy: float, without_p2p: float) -> None:
    """Rates of H200 without NVLink multicast, and of the same with NCCL_P2P_DISABLE=1."""
    facts = {"a": without_multicast(gpus)}
    report = judged(curve_of(name, healthy, gpus), facts)
    assert (kinds(report), report.unbounded, report.notes) == (set(), False, ())
    report = judged(curve_of(name, without_p2p, gpus), facts)
    assert kinds(report) == FAULT
    assert "physics expects" in report.findings[0].message
    assert report.findings[0].reference == "physics"


def test_only_the_largest_size_is_judged_and_as_far_as_it_is_saturated() -> None:
    facts = {"a": without_multicast(4)}
    rising = curve_of("all_reduce", 200.0, 4)
    points = [
        point.model_copy(update={"in_place": Timing(time_us=9.0, algbw=1, busbw=200.0 * 1.1**number, wrong=0)})
        for number, point in enumerate(rising.points)
    ]  # fmt: skip
    report = judged(rising.model_copy(update={"points": tuple(points[:3])}), facts)
    assert kinds(report) == HINT
    assert "not saturated" in report.findings[0].message
    small = judged(curve_of("all_reduce", 1.0, 4, (8, 2**20)), facts)
    assert not small.findings
    assert small.unbounded
    assert small.bounds == ("busbw_1MiB: not judged by physics: messages below 1 GiB have no law",)


@pytest.mark.parametrize(("bound", "floor", "busbw", "expected"), [
    ("40 GB/s", True, 100.0, {"below_physics"}), ("40 GB/s", False, 100.0, set()),
    ("460 GB/s", True, 300.0, {"below_reference", "below_physics"}), ("460 GB/s", True, 400.0, {"below_reference"}),
    ("200 GB/s", False, 100.0, {"below_reference"}),
])  # fmt: skip
def test_the_bound_of_the_site_replaces_physics_and_of_a_vendors_the_stricter_counts(
    bound: str, floor: bool, busbw: float, expected: set[str]
) -> None:
    vendors = reference("busbw_8GiB", bound, name="theirs").model_copy(update={"floor": floor})
    report = judged(curve_of("all_reduce", busbw, 8), {"a": node("H100")}, vendors)
    assert {finding.kind for finding in report.findings if finding.severity.fails} == expected
    (theirs, ours) = (line for line in report.bounds if line.startswith("busbw_8GiB"))
    assert theirs == f"busbw_8GiB: >= {bound} by reference theirs"
    assert ours.startswith("busbw_8GiB: physics expects 476.4 GB/s, FAIL below 357.3: 0.605 of 18 NVLinks")
    assert ours.endswith("; reference theirs replaces it") != floor


def hardware_of(system: System) -> MachineFacts:
    """The hardware of a shipped system; Lambda's and the plain H200 name no NIC, which the node then shows itself."""
    assert system.gpu is not None
    gpu = max((name for name in GPUS if name in system.gpu.model), key=len)
    return node(gpu, system.gpus_per_node or 0, nics=0 if system.network else 8)


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)
def test_each_shipped_system_has_a_bound_at_any_number_of_nodes(system: System) -> None:
    """3 GB/s, as TCP gives, fails everywhere."""
    facts, gpus = hardware_of(system), system.gpus_per_node or 0
    for nodes in (1, 2, 16, 125, 1250):
        hosts = [f"n{number}" for number in range(nodes)]
        site = Site(system=system.name, nodes=nodes, gpus_per_node=gpus, network=system.network)
        machines = Machines(site=site, facts=dict.fromkeys(hosts, facts), missing={})
        for name in ("all_reduce", "all_gather", "sendrecv"):
            bound = machines.collective(name, hosts, 8 * GIB, growth=0.01)
            assert isinstance(bound, PhysicsBound), bound
            assert bound.fail > 3.0
            assert nodes == 1 or "NIC" in bound.how or "inside a domain" in bound.how


def rack(cluster: int, *, trays: int = 2, status: int = 0) -> list[MachineFacts]:
    fabric = MachineFabric(state=3, status=status, cluster_uuid=f"{cluster:032x}", clique_id=1)
    return [node("GB200", 4, nics=4, each={"fabric": fabric})] * trays


def expect(nodes: Sequence[MachineFacts], name: str = "all_reduce", **site: Any) -> Any:
    facts = {f"n{number}": facts for number, facts in enumerate(nodes)}
    described = replace(site_of(len(nodes[0].gpus), len(nodes)), **site)
    return Machines(site=described, facts=facts, missing={}).collective(name, list(facts), 8 * GIB)


def test_a_rack_is_one_domain() -> None:
    assert expect(rack(1, trays=18)).expected == pytest.approx(0.53 * 900 * 2 * 71 / 72)
    assert "one tray's NICs" in expect([*rack(1), *rack(2)]).how
    # Each tray is its own without a joined fabric, and by NCCL's own variable.
    for alone in (expect(rack(0)), expect(rack(1, status=3)), expect(rack(1), env={"NCCL_MNNVL_ENABLE": "0"})):
        assert alone.expected == pytest.approx(0.95 * 200 * 2 * 7 / 8)
    assert domain_of("n0", rack(7)[0], {}) == f"{7:032x} 1"


def test_what_lowers_the_expectation_between_nodes() -> None:
    full = expect([node(nics=8)] * 3)
    assert full.expected == pytest.approx(380)
    assert expect([node(nics=8)] * 3, network=Network(oversubscription=2)).expected == pytest.approx(190)
    assert expect([node(nics=8)] * 3, gpus_per_node=2).expected == pytest.approx(95)
    assert expect([node(nics=8), node(nics=4), node(nics=8)]).expected == pytest.approx(190)
    pairs = node("A100", 4, joined=False, each={"nvswitch": False})
    bridged = expect([pairs])
    assert isinstance(expect([pairs], "alltoall"), NoLaw)
    assert isinstance(expect([node(nics=8)] * 125, "all_gather"), NoLaw)
    assert expect([node(each={"nvlink_version": None})]) == expect([node()])
    assert "a wide floor" in bridged.how
    assert isinstance(expect([node()] * 2), NoLaw)
    assert isinstance(expect([node(nics=8), node("A100", nics=8)]), NoLaw)
    six = node(each={"nvlink_version": 6})
    assert expect([six]).reason == "unknown hardware: NVLink 6"


def test_one_gpu_of_each_node_over_its_own_nic() -> None:
    facts = dict.fromkeys(("a", "b"), node(nics=8))
    bound = Machines(site=site_of(8, 2), facts=facts, missing={}).rail(["a", "b"], 4 * GIB)
    assert isinstance(bound, PhysicsBound)
    assert bound.expected == pytest.approx(0.95 * 0.95 * 50)
    assert bound.fail == pytest.approx(0.7 * 0.95 * 0.95 * 50)


@pytest.mark.parametrize(("changes", "expected"), [
    ({}, 52.9),  # 5.0 × 16
    ({"pcie_gen": 4}, 26.5),  # the slot
    ({"pcie_gen": 4, "cpu_pcie_gen": 3}, 13.2),  # a faster switch, as on p4d
    ({"pcie_gen": 1, "own_pcie_gen": 5}, None),  # the emulated port of a virtual machine
    ({"pcie_gen": 1, "pcie_width": 1, "c2c": True}, 360.0),
])  # fmt: skip
def test_copies_between_host_and_gpu(changes: dict[str, Any], expected: float | None) -> None:
    cpu = changes.get("cpu_pcie_gen")
    each = {name: value for name, value in changes.items() if name != "cpu_pcie_gen"}
    facts = {"a": node("H100", 1, each=each, virtual=True, cpu_pcie_gen=cpu)}
    machines = Machines(site=site_of(1), facts=facts, missing={})
    reading = Reading(host="a", subject="GPU 0", statistic="host_to_device", value=1.0, unit="GB/s", gpus=1)
    bound = machines.host_copy(reading, to_device=True)
    assert (bound.expected if isinstance(bound, PhysicsBound) else None) == pytest.approx(expected, abs=0.1)
