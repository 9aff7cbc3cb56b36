"""Check under load for minutes: rate, clocks, temperature and power."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import mean, median

from pydantic import PositiveFloat

from pytest_llmbench.checks.answers import read_answers, silent
from pytest_llmbench.checks.base import Answer, CheckDefaults, CheckSettings, Fleet, Site, deadline_of, options_of
from pytest_llmbench.checks.compute.nodes.answer import SustainedLoad, TelemetrySample
from pytest_llmbench.checks.compute.rates import (
    ComputeKind,
    Fraction,
    Rates,
    finding,
    list_answered,
    side_of,
    subject,
    tolerance_of,
)
from pytest_llmbench.checks.machine import Machines
from pytest_llmbench.core.record.health import Finding, Reading, Report, Severity
from pytest_llmbench.core.record.telemetry import SLOWDOWNS
from pytest_llmbench.core.schema import Strict
from pytest_llmbench.judging.physics import PhysicsResult

# Samples come about once a second.
_GAP_S = 3.0
_UNITS = {
    "sustained": "TFLOP/s/gpu",  #: statistic sustained.sustained: rate of matrix products in the last third of the load
    "sustained_drop": "%",  #: statistic sustained.sustained_drop: drop from the first third to the last
    "clock_min": "MHz",  #: statistic sustained.clock_min: lowest SM clock under load
    "temperature_max": "degC",  #: statistic sustained.temperature_max: highest temperature under load
    "power_mean": "W",  #: statistic sustained.power_mean: mean power under load
}
_OF_SAMPLES: Mapping[str, tuple[str, Callable[[Sequence[float]], float]]] = {
    "clock_min": ("clock_mhz", min),
    "temperature_max": ("temperature_degc", max),
    "power_mean": ("power_w", mean),
}
_ACTION = "check cooling, power supply and dust, then clocks and power limit"
_SHORT_S = 2.5
_FEWEST_RATES = 3


class SustainedOptions(Strict):
    """Options of the check."""

    minutes: PositiveFloat | None = None
    """Duration of the load in minutes; absent, 2 on GPUs, and a few seconds on CPUs and at scale `smoke`."""
    drop: Fraction | None = None
    """Allowed drop from the first third to the last (fraction); absent, 0.05 on GPUs, and no limit on CPUs and at scale
    `smoke`.
    """
    temperature_degc: PositiveFloat = 85.0
    """Temperature in °C above which there is a hint."""


class Sustained(CheckDefaults):
    """Products in a loop on all GPUs of all nodes, with a telemetry sample about once a second."""

    name = "sustained"
    family = "compute"
    summary = "rate of matrix products over minutes, with clocks, temperature, power and throttling of every GPU"
    options: type[Strict] = SustainedOptions
    statistics: Mapping[str, str] = _UNITS

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        options, site = options_of(self, settings, SustainedOptions), fleet.site
        seconds = 60.0 * options.minutes if options.minutes else 120.0 if site.is_full_gpu else _SHORT_S
        deadline_s = settings.deadline_s or self.deadline_s + seconds
        block_s, timeout_s = 1.0 if seconds > 10 else 0.2, deadline_of(self, settings) / 2
        config = {"side": side_of(site), "seconds": seconds, "block_s": block_s, "timeout_s": timeout_s}
        how = {"ranks_per_node": site.gpus_per_node or 1, "deadline_s": deadline_s}
        probe = self.probe_devices(site, settings, "compute:sustain", config, **how)
        answers = read_answers(fleet.run([probe])[0], SustainedLoad)
        loads = [_DeviceLoad(site, answer, data, options) for answer, data in list_answered(answers)]
        machines = Machines.ask(fleet)
        precisions = {(load.answer.host, subject(site, load.answer)): load.data.precision for load in loads}

        def expect(reading: Reading) -> PhysicsResult | None:
            if machines is None or reading.statistic != "sustained":
                return None
            return machines.products(reading, precisions[str(reading.host), reading.subject])

        rates = Rates(site, settings, options.drop, expect, machines.lowered_power if machines else None)
        for load in loads:
            for name, value in load.numbers.items():
                rates.add(load.answer, name, value, _UNITS[name])
        unjudged = {load.answer.host: reason for load in loads if (reason := load.why_unjudged())}
        findings = (*(finding for load in loads for finding in load.findings()), *rates.judge(_ACTION))
        return Report(
            findings=findings,
            readings=tuple(rates.readings),
            unjudged={**rates.unmeasured(), **unjudged, **silent(answers)},
            unbounded=rates.unbounded,
            bounds=rates.lines(),
            notes=(*(note for load in loads for note in load.notes()), *rates.notes()),
            evidence={
                **{load.device: load.data for load in _choose_shown(loads, findings, unjudged)},
                **(machines.evidence if machines else {}),
            },
        )


class _DeviceLoad:
    """One device under load: its numbers by statistic, and what is wrong with them."""

    def __init__(
        self, site: Site, answer: Answer[SustainedLoad], data: SustainedLoad, options: SustainedOptions
    ) -> None:
        self.site, self.answer, self.data, self.options = site, answer, data, options
        self.device = f"{answer.host} {subject(site, answer)}"
        self.numbers = {**_summarize_rates(data.rates), **_summarize_telemetry(data.telemetry)}

    def why_unjudged(self) -> str | None:
        """The reason why the load cannot be judged; None if it can."""
        if len(self.data.rates) < _FEWEST_RATES:
            return f"{self.device}: {len(self.data.rates)} rates are too few to compare the last with the first"
        if self.site.device == "cuda" and all(sample.reasons is None for sample in self.data.telemetry):
            reason = self.data.trouble or "no sample of NVML has reasons for lower clocks"
            return f"{self.device}: throttling is unknown: {reason}"
        return None

    def findings(self) -> Iterator[Finding]:
        drop, allowed = self.numbers.get("sustained_drop"), 100.0 * tolerance_of(self.site, self.options.drop)
        if drop is not None and drop > allowed:  #: finding slows_down: the rate falls under load
            message = f"the rate of the last third is {drop:.1f} % below that of the first, {allowed:g} % allowed"
            yield self._make_finding("slows_down", Severity.ISOLATE, message)
        samples = self.data.telemetry
        for bit, name in SLOWDOWNS.items():
            if count := sum(bool((sample.reasons or 0) & bit) for sample in samples):
                #: finding throttled: clocks are held down under load, and not by the power limit
                message = f"throttled under load: {name} in {count} of {len(samples)} samples"
                yield self._make_finding("throttled", Severity.ISOLATE, message)
        hottest = self.numbers.get("temperature_max")
        if hottest is not None and hottest > self.options.temperature_degc:
            message = f"{hottest:g} degC under load, {self.options.temperature_degc:g} degC is usual"
            yield self._make_finding("hot", Severity.MONITOR, message)  #: finding hot: a device gets hotter than usual

    def _make_finding(self, kind: ComputeKind, severity: Severity, message: str) -> Finding:
        return finding(self.answer.host, subject(self.site, self.answer), kind, severity, message, _ACTION)

    def notes(self) -> Iterator[str]:
        if self.data.telemetry or self.site.device == "cuda":
            end_s = self.data.rates[-1][0] if self.data.rates else 0.0
            for before, after in pairwise([0.0, *(sample.at_s for sample in self.data.telemetry), end_s]):
                if after - before > _GAP_S:
                    yield f"{self.device}: no telemetry from {before:.0f} to {after:.0f} s"
        if self.data.trouble:
            yield f"{self.device}: {self.data.trouble}"
        if missing := [name for name in _OF_SAMPLES if name not in self.numbers]:
            yield f"{self.device}: not reported by this machine: {', '.join(missing)}"


def _choose_shown(
    loads: Sequence[_DeviceLoad], findings: Sequence[Finding], unjudged: Mapping[str, str]
) -> Iterator[_DeviceLoad]:
    """Yield the devices whose samples are evidence: those with a finding, the unjudged, the slowest and the fastest.

    The readings have the numbers of all others: the samples of ten thousand GPUs are hundreds of megabytes.
    """
    shown = {f"{finding.host} {finding.subject}" for finding in findings}
    ends = sorted(loads, key=lambda load: load.numbers.get("sustained", 0.0))
    shown |= {load.device for load in (*ends[:1], *ends[-1:])}
    return (load for load in loads if load.device in shown or load.answer.host in unjudged)


def _summarize_rates(rates: Sequence[tuple[float, float]]) -> dict[str, float]:
    if len(rates) < _FEWEST_RATES:
        return {}
    tflops = [rate / 1e12 for _, rate in rates]
    third = len(tflops) // 3
    first, last = median(tflops[:third]), median(tflops[-third:])
    return {"sustained": last, "sustained_drop": 100.0 * (1.0 - last / first)}


def _summarize_telemetry(samples: Sequence[TelemetrySample]) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for statistic, (field, summarize) in _OF_SAMPLES.items():
        under_load = (getattr(sample, field) for sample in samples[1:])  # the first is of the begin of the load
        if values := [value for value in under_load if value is not None]:
            numbers[statistic] = summarize(values)
    return numbers
