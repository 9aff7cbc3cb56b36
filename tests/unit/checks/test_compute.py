"""Compute checks: on real processes, and on facts of GPUs that are not here."""

import copy
from collections.abc import Mapping
from typing import Any

import pytest

from pytest_llmbench.checks.answers import dissenters
from pytest_llmbench.checks.base import CheckSettings, Probe, Site, get_check
from pytest_llmbench.checks.compute.gemm import find_slow_shapes
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.record.health import Report, Severity
from tests.support.fleet import AnsweringFleet, ProcessFleet, cpu_site
from tests.support.references import reference

_HOSTS = ("a", "b", "c")
_NAMES = ("gemm", "memory_bandwidth", "host_device_bandwidth", "sustained")
_SITE = Site(system="test", nodes=3, gpus_per_node=2, peak_tflops={"bf16": 989.4}, selected=_NAMES)
_GOOD: dict[str, Any] = {
    "device": "NVIDIA H200",
    "setting": {"device": "NVIDIA H200", "torch": "2.11.0", "cuda": "13.0"},
    "gemm": {"side": 8192, "factors": "f00d",
             "precisions": {"bf16": {"rate": 680e12, "digest": "1", "repeated": 17, "changed": 0, "error": 0.011}},
             "lacking": {}},
    "memory": 4.39e12,
    "host_device": dict.fromkeys(("host_to_device", "device_to_host", "host_to_device_all", "device_to_host_all"),
                                 55.4e9),
}  # fmt: skip
_LOADED: dict[str, Any] = {
    "device": "NVIDIA H200",
    "precision": "bf16",
    "rates": [[float(second), 670e12] for second in range(1, 13)],
    "telemetry": [{"at_s": float(second), "clock_mhz": 1455, "temperature_degc": 58, "power_w": 690.5,
                   "reasons": 0x4}  for second in range(13)],
    "trouble": None,
}  # fmt: skip


def fleet_of(usual: Mapping[str, Any], **changes: Any) -> AnsweringFleet:
    """Six GPUs that answer alike but for some, such as `b1={"memory": 1e12}`: laid over, or in place as a text."""
    answers: dict[tuple[str, int], Any] = {(host, gpu): usual for host in _HOSTS for gpu in range(2)}
    for name, change in changes.items():
        answers[name[0], int(name[1])] = change if isinstance(change, str) else {**usual, **change}
    return AnsweringFleet(_SITE, _HOSTS, lambda _, host, gpu: answers[host, gpu])


def bf16(**changes: Any) -> dict[str, Any]:
    """What one GPU says whose bf16 product has something about it."""
    changed = copy.deepcopy(_GOOD)
    changed["gemm"]["precisions"]["bf16"] |= changes
    return changed


def judged(name: str, fleet: AnsweringFleet, **settings: Any) -> Report:
    return get_check(name).run(fleet, CheckSettings(**settings))


def accused(report: Report) -> list[tuple[str | None, str, str]]:
    return [(finding.host, finding.subject, finding.kind) for finding in report.findings]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[ProcessFleet, dict[str, Report]]:
    """The checks that share a probe, on three nodes, one of which has CPU code of another kind."""
    fleet = ProcessFleet(
        site=cpu_site(3, selected=_NAMES), hosts=_HOSTS, folder=tmp_path_factory.mktemp("compute"),
        env={"c": {"ATEN_CPU_CAPABILITY": "default"}}, torch=True,
    )  # fmt: skip
    return fleet, {name: get_check(name).run(fleet, CheckSettings()) for name in _NAMES[:3]}


@pytest.fixture(scope="module")
def sustained(tmp_path_factory: pytest.TempPathFactory) -> Report:
    fleet = ProcessFleet(site=cpu_site(1), hosts=("a",), folder=tmp_path_factory.mktemp("sustained"), torch=True)
    return get_check("sustained").run(fleet, CheckSettings())


def test_three_real_nodes_compute_the_same(measured: tuple[ProcessFleet, dict[str, Report]]) -> None:
    """Every node has a rate of a real machine; c runs other CPU code, whose products may differ in the last bit."""
    _, reports = measured
    for name in ("gemm", "memory_bandwidth"):
        report = reports[name]
        assert (report.findings, dict(report.unjudged), report.skip, report.problem) == ((), {}, None, None), name
        assert {(reading.host, reading.subject) for reading in report.readings} == {(host, "CPU") for host in _HOSTS}
        declared = get_check(name).statistics
        assert all(declared[reading.statistic] == reading.unit for reading in report.readings)
        assert all(1e7 < reading.quantity.base < 1e15 for reading in report.readings)
    told = reports["gemm"].evidence
    assert told["a CPU"].precisions["fp32"].digest == told["b CPU"].precisions["fp32"].digest
    assert told["a CPU"].precisions["fp32"].repeated > 0
    assert [probe.name for probe in measured[0].asked] == ["compute"]
    assert measured[0].asked[0].config["measure"] == ["gemm", "memory"]
    assert any("devices differ in 2 ways" in note for note in measured[1]["gemm"].notes)
    assert "no GPUs" in (measured[1]["host_device_bandwidth"].skip or "")


def test_a_load_on_a_real_node_says_what_it_could_not_watch(sustained: Report) -> None:
    """A CPU that tells no clock, temperature or power has no such number, and a note."""
    assert (sustained.findings, dict(sustained.unjudged), sustained.problem) == ((), {}, None)
    told = {reading.statistic: reading for reading in sustained.readings}
    assert 1e7 < told["sustained"].quantity.base < 1e15
    assert "sustained_drop" in told
    for missing in {"clock_min", "temperature_max", "power_mean"} - set(told):
        assert any("not reported by this machine" in note and missing in note for note in sustained.notes)


def test_healthy_gpus_are_not_accused() -> None:
    for name in _NAMES:
        report = judged(name, fleet_of(_LOADED if name == "sustained" else _GOOD))
        assert not report.findings
        assert not report.unjudged
        assert len({(r.host, r.subject, r.statistic) for r in report.readings}) == len(report.readings) > 0
        assert {r.gpus for r in report.readings} == {1}


@pytest.mark.parametrize(("name", "change"), [
    ("gemm", bf16(rate=600e12)),
    ("memory_bandwidth", {"memory": 4.0e12}),
    ("host_device_bandwidth", {"host_device": {**_GOOD["host_device"], "host_to_device": 27e9}}),
])  # fmt: skip
def test_a_slow_gpu_is_named(name: str, change: Mapping[str, Any]) -> None:
    report = judged(name, fleet_of(_GOOD, b1=change))
    assert accused(report) == [("b", "GPU 1", "outlier")]
    assert "below the median" in report.findings[0].message
    assert not judged(name, fleet_of(_GOOD, b1=change), options={"tolerance": 0.6}).findings


@pytest.mark.parametrize(("change", "kind"), [
    ({"digest": "2"}, "other_product"), ({"changed": 3}, "not_repeatable"), ({"error": 0.5}, "wrong_product"),
    ({"error": None}, "wrong_product"), ({"rate": 400e12, "digest": "1"}, "below_peak"),
])  # fmt: skip
def test_a_gpu_that_computes_wrong_is_to_be_replaced(change: Mapping[str, Any], kind: str) -> None:
    report = judged("gemm", fleet_of(_GOOD, c0=bf16(**change)))
    assert {("c", "GPU 0", kind)} <= set(accused(report)) <= {("c", "GPU 0", kind), ("c", "GPU 0", "outlier")}
    assert {finding.severity for finding in report.findings} == {Severity.ISOLATE}


def test_a_majority_of_those_not_known_to_be_wrong_decides() -> None:
    """Three of six are wrong by fp64: the other three are a majority of those left, not half of all."""
    bad = bf16(digest="2", error=0.5)
    report = judged("gemm", fleet_of(_GOOD, a0=bad, a1=bad, b0=bad))
    assert {kind for *_, kind in accused(report)} == {"wrong_product"}
    assert not report.unjudged
    other = bf16(digest="2")
    report = judged("gemm", fleet_of(_GOOD, a0=other, a1=other, b0=other))
    assert not report.findings
    assert set(report.unjudged) == set(_HOSTS)
    assert "no majority" in report.unjudged["a"]


def test_a_rate_beyond_the_peak_is_no_pass() -> None:
    report = judged("gemm", fleet_of(_GOOD, a0=bf16(rate=1500e12)))
    assert list(report.unjudged) == ["a"]
    assert "implausible" in report.unjudged["a"]


@pytest.mark.parametrize("name", _NAMES)
def test_a_silent_gpu_is_no_pass(name: str) -> None:
    usual = _LOADED if name == "sustained" else _GOOD
    assert dict(judged(name, fleet_of(usual, b0="out of memory")).unjudged) == {"b": "rank 2: out of memory"}


def test_a_reference_bounds_the_rate() -> None:
    bound, elsewhere = (reference("gemm_bf16", "700 TFLOP/s/gpu", gpu=gpu, gpus=1, nodes=1) for gpu in ("H200", "A100"))
    report = judged("gemm", fleet_of(_GOOD), references=(bound,))
    assert {kind for *_, kind in accused(report)} == {"below_reference"}
    assert len(report.findings) == 6
    assert not report.notes
    report = judged("gemm", fleet_of(_GOOD), references=(elsewhere,))
    assert not report.findings
    assert "no reference" in report.notes[0]


@pytest.mark.parametrize(
    ("name", "statistic"), [("gemm", "gemm_fp8"), ("gemm", "best_bf16"), ("sustained", "clock_min")]
)
def test_a_reference_on_what_was_not_measured_is_no_pass(name: str, statistic: str) -> None:
    """A precision that the device lacks, a search that is off, a GPU that tells no clock."""
    blind = {"telemetry": [{**sample, "clock_mhz": None} for sample in _LOADED["telemetry"]]}
    usual = _GOOD if name == "gemm" else _LOADED | blind
    bounds = {
        gpu: (reference(statistic, "1 MHz" if name == "sustained" else "1 TFLOP/s/gpu", gpu=gpu, gpus=1, nodes=1),)
        for gpu in ("H200", "A100")
    }
    unjudged = judged(name, fleet_of(usual), references=bounds["H200"]).unjudged
    assert unjudged == dict.fromkeys(_HOSTS, f"GPU 0: reference bound asks for {statistic}, which was not measured")
    assert not judged(name, fleet_of(usual), references=bounds["A100"]).unjudged


_SHAPE = [2048, 4096, 8192, 780e12, 790e12, 0.01]
_SWEPT: dict[str, Any] = {
    "device": "NVIDIA H200",
    "products": {name: {"curve": [_SHAPE, [4096, 4096, 8192, 700e12, 705e12, 0.01]], "best": _SHAPE,
                        "left_out": 0}  for name in ("bf16", "fp8", "fp8_rowwise")},
    "lacking": {},
}  # fmt: skip


def searched(**changes: Any) -> Report:
    """The report with the search of the fastest shape; some GPUs found something else, as for `fleet_of`."""
    usual, shapes = fleet_of(_GOOD), fleet_of(_SWEPT, **changes)

    def answer(probe: Probe, host: str, gpu: int) -> Any:
        return (shapes if probe.name == "sweep" else usual).answer(probe, host, gpu)

    return judged("gemm", AnsweringFleet(_SITE, _HOSTS, answer), options={"sweep_s": 3})


def swept(name: str, **changes: Any) -> dict[str, Any]:
    found = {**_SWEPT["products"][name], **changes}
    return {"products": {**_SWEPT["products"], name: found}}


def test_the_fastest_shape_is_a_number_of_each_gpu() -> None:
    report = searched()
    assert not report.findings
    assert not report.unjudged
    best = [reading for reading in report.readings if reading.statistic == "best_fp8"]
    assert [(reading.value, reading.unit) for reading in best] == [(780.0, "TFLOP/s/gpu")] * 6
    assert "fp8 on NVIDIA H200: best of 2 shapes 2048 × 4096 × 8192 (m, n, k): 780 TFLOP/s" in "\n".join(report.notes)
    assert report.evidence["shapes of a GPU 0"]["bf16"].curve[1].rate == 700e12


@pytest.mark.parametrize(("changes", "kind"), [
    ({"best": [*_SHAPE[:3], 700e12, 700e12, 0.01]}, "outlier"),
    ({"best": [*_SHAPE[:5], 0.3]}, "wrong_product"),
    ({"curve": [[*_SHAPE[:5], None]]}, "wrong_product"),
])  # fmt: skip
def test_a_gpu_whose_shapes_are_slow_or_wrong_is_named(changes: dict[str, Any], kind: str) -> None:
    assert accused(searched(b1=swept("bf16", **changes))) == [("b", "GPU 1", kind)]


def test_a_missing_search_is_no_pass() -> None:
    """A GPU that is silent, says nothing of a product, or lacks one that its like have."""
    less = {name: found for name, found in _SWEPT["products"].items() if name != "fp8"}
    report = searched(a0="out of memory", b0={"products": less}, c1={"products": less, "lacking": {"fp8": "no"}})
    assert report.unjudged.keys() == set(_HOSTS)
    assert report.unjudged["a"] == "rank 0: out of memory"
    assert "neither a rate nor a reason for fp8" in report.unjudged["b"]
    assert report.unjudged["c"] == "fp8 not measured, and other NVIDIA H200 have it: no"


def test_shapes_far_below_their_neighbours_are_named() -> None:
    rates = {(1, 1, 1): 5.0, (1, 1, 2): 7.0, (1, 1, 4): 10.0, (1, 2, 2): 3.0, (1, 4, 2): 8.0}
    assert find_slow_shapes(rates) == {(1, 2, 2): pytest.approx(3 / 7)}
    curve = [[2048, n, 8192, 1e12 * rate, 8e14, 0.01] for n, rate in ((2048, 700), (4096, 500), (8192, 720))]
    report = searched(**{f"{host}{gpu}": swept("bf16", curve=curve) for host in _HOSTS for gpu in (0, 1)})
    assert not report.findings
    assert "bf16 on NVIDIA H200: 2048 × 4096 × 8192 has 71% of the rate of both shapes next to it" in report.notes


def test_what_a_device_lacks_is_said() -> None:
    lacking = {"gemm": {**_GOOD["gemm"], "lacking": {"fp8": "needs compute capability 8.9"}}}
    notes = judged("gemm", fleet_of({**_GOOD, **lacking})).notes
    assert "fp8 not measured on NVIDIA H200: needs compute capability 8.9" in notes


def test_a_gpu_that_slows_down_is_found() -> None:
    rates = [[float(second), (670e12 if second < 7 else 536e12)] for second in range(1, 13)]
    report = judged("sustained", fleet_of(_LOADED, a1={"rates": rates}))
    assert accused(report) == [("a", "GPU 1", "slows_down")]
    assert "20.0 % below" in report.findings[0].message


@pytest.mark.parametrize(("change", "kind", "severity"), [
    ({"clock_mhz": 900, "reasons": 0x08}, "throttled", Severity.ISOLATE),
    ({"clock_mhz": 900, "reasons": 0x44}, "throttled", Severity.ISOLATE),
    ({"temperature_degc": 91}, "hot", Severity.MONITOR),
])  # fmt: skip
def test_telemetry_is_judged(change: Mapping[str, Any], kind: str, severity: Severity) -> None:
    samples = copy.deepcopy(_LOADED["telemetry"])
    samples[6] |= change
    report = judged("sustained", fleet_of(_LOADED, c1={"telemetry": samples}))
    assert accused(report) == [("c", "GPU 1", kind)]
    assert report.findings[0].severity is severity


@pytest.mark.parametrize("samples", [[], [{**_LOADED["telemetry"][0], "reasons": None}]])
@pytest.mark.parametrize(
    ("trouble", "reason"), [("nvidia-ml-py is not installed", "nvidia-ml-py is not installed"), (None, "no sample")]
)
def test_a_gpu_without_telemetry_is_no_pass(samples: list[Any], trouble: str | None, reason: str) -> None:
    report = judged("sustained", fleet_of(_LOADED, a0={"telemetry": samples, "trouble": trouble}))
    assert f"throttling is unknown: {reason}" in report.unjudged["a"]


def test_gaps_of_telemetry_are_said_and_a_load_too_short_to_compare_is_no_pass() -> None:
    samples = [{**_LOADED["telemetry"][0], "at_s": float(at_s)} for at_s in (0, 1, 2, 7)]
    report = judged("sustained", fleet_of(_LOADED, a0={"telemetry": samples}))
    gaps = [note for note in report.notes if "no telemetry" in note]
    assert gaps == ["a GPU 0: no telemetry from 2 to 7 s", "a GPU 0: no telemetry from 7 to 12 s"]
    assert "too few" in judged("sustained", fleet_of(_LOADED, a0={"rates": _LOADED["rates"][:2]})).unjudged["a"]


def test_samples_of_gpus_that_stand_out_are_evidence() -> None:
    """A finding, the slowest and the fastest: those of all GPUs of a large cluster would be hundreds of megabytes."""
    faster, throttled = [[at, 1.01 * rate] for at, rate in _LOADED["rates"]], copy.deepcopy(_LOADED["telemetry"])
    throttled[6]["reasons"] = 0x08
    fleet = fleet_of(_LOADED, a1={"rates": faster}, c1={"telemetry": throttled})
    shown = {name for name in judged("sustained", fleet).evidence if "GPU" in name}
    assert shown == {"a GPU 0", "a GPU 1", "c GPU 1"}


def test_minutes_are_the_users() -> None:
    fleet = fleet_of(_LOADED)
    judged("sustained", fleet, options={"minutes": 30})
    assert fleet.asked[0].config["seconds"] == 1800
    assert fleet.asked[0].deadline_s > 1800


@pytest.mark.parametrize("name", _NAMES[:2] + _NAMES[3:])
def test_an_unknown_option_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="tolerence"):
        judged(name, fleet_of(_GOOD), options={"tolerence": 0.1})


@pytest.mark.parametrize(("values", "odd"), [
    ("", []), ("x", []), ("xx", []), ("xy", None), ("xxy", [2]), ("xxyy", None), ("xyz", None), ("xxxyz", [3, 4]),
])  # fmt: skip
def test_dissenters_need_a_majority(values: str, odd: list[int] | None) -> None:
    assert dissenters(dict(enumerate(values))) == odd
