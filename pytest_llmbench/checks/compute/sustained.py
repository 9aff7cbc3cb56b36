"""A load of minutes: does the rate hold, and what do clocks, temperature and power do meanwhile?"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, median

from pydantic import PositiveFloat

from pytest_llmbench.checks.answers import read_answers, silent
from pytest_llmbench.checks.base import Answer, CheckSettings, Fleet, NodeCheck, Probe, Site, options_of
from pytest_llmbench.checks.compute import rates
from pytest_llmbench.checks.compute.kinds import ComputeKind, finding
from pytest_llmbench.checks.compute.nodes.answer import SustainedLoad
from pytest_llmbench.core.record.health import Finding, Report, Severity
from pytest_llmbench.core.record.telemetry import SLOWDOWNS
from pytest_llmbench.core.schema import Strict

# Samples come every second; one that comes this late is missed by those before it.
_GAP_S = 3.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One look at a device.

    Attributes:
        at_s: seconds since the load began.
        clock: MHz. temperature: degC. power: W.
        reasons: reasons for a lower clock, as NVML's bits.
        None: for what the device does not tell.
    """

    at_s: float
    clock: float | None
    temperature: float | None
    power: float | None
    reasons: int | None


def read(told: Sequence[tuple[float, str]]) -> tuple[list[Sample], list[str]]:
    """Read raw lines of four columns; return samples, and lines that could not be parsed."""
    samples, strange = [], []
    for at_s, line in told:
        try:
            clock, temperature, power, reasons = (part.strip() for part in line.split(","))
            samples.append(
                Sample(
                    at_s=at_s,
                    clock=_number(clock),
                    temperature=_number(temperature),
                    power=_number(power),
                    reasons=None if reasons.startswith("[") else int(reasons, 16),
                )
            )
        except ValueError:
            strange.append(line)
    return samples, strange


def _number(text: str) -> float | None:
    return None if text.startswith("[") else float(text)


def throttled(samples: Sequence[Sample]) -> list[str]:
    """Reasons for a lower clock that must not be, and how often each was seen."""
    counted = {name: sum(bool((sample.reasons or 0) & bit) for sample in samples) for bit, name in SLOWDOWNS.items()}
    return [f"{name} in {count} of {len(samples)} samples" for name, count in counted.items() if count]


def gaps(samples: Sequence[Sample], end_s: float) -> Iterator[str]:
    """Times of the load, which ended after `end_s` seconds, without samples."""
    for before, after in pairwise([0.0, *(sample.at_s for sample in samples), end_s]):
        if after - before > _GAP_S:
            yield f"no telemetry from {before:.0f} to {after:.0f} s"


_UNITS = {
    "sustained": "TFLOP/s/gpu",  #: statistic sustained.sustained: rate of matrix products in the last third of the load
    "sustained_drop": "%",  #: statistic sustained.sustained_drop: drop from the first third to the last
    "clock_min": "MHz",  #: statistic sustained.clock_min: lowest SM clock under load
    "temperature_max": "degC",  #: statistic sustained.temperature_max: highest temperature under load
    "power_mean": "W",  #: statistic sustained.power_mean: mean power under load
}
_ACTION = "check cooling, power supply and dust, then clocks and power limit"
_SHORT_S = 2.5
_FEWEST_RATES = 3


class SustainedOptions(Strict):
    """Options of the check."""

    minutes: PositiveFloat | None = None
    """Duration of the load; absent, 2 on GPUs, and a few seconds on CPUs and at scale `smoke`."""
    drop: rates.Fraction | None = None
    """Allowed drop from the first third to the last (fraction); absent, 0.05 on GPUs, and not judged on CPUs and at
    scale `smoke`.
    """
    temperature_degc: PositiveFloat = 85.0
    """Above it there is a hint."""


class Sustained(NodeCheck):
    """Products in a loop on all GPUs of all nodes, watched once a second."""

    name = "sustained"
    family = "compute"
    summary = "rate of matrix products over minutes, with clocks, temperature, power and throttling of every GPU"
    options: type[Strict] = SustainedOptions
    statistics: Mapping[str, str] = _UNITS

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        """Load the devices, and judge."""
        options, site = options_of(self, settings, SustainedOptions), fleet.site
        long = site.device == "cuda" and site.scale == "full"
        seconds = 60.0 * options.minutes if options.minutes else 120.0 if long else _SHORT_S
        probe = Probe(
            name="sustained",
            entry="pytest_llmbench.checks.compute.nodes.compute:sustain",
            config={
                "side": rates.side_of(site),
                "seconds": seconds,
                "block_s": 1.0 if seconds > 10 else 0.2,
                "timeout_s": self.deadline_s / 2,
            },
            ranks_per_node=site.gpus_per_node or 1,
            gpus=site.device == "cuda",
            deadline_s=settings.deadline_s or self.deadline_s + seconds,
        )
        answers = read_answers(fleet.run([probe])[0], SustainedLoad)
        told = [_Judged(site, answer, data, options) for answer, data in rates.answered(answers)]
        found = [each for judged in told for each in judged.rated]
        below = rates.below(found, site, settings, _ACTION)
        return Report(
            findings=(*(finding for judged in told for finding in judged.findings()), *below),
            readings=tuple(each.reading for each in found),
            unjudged={**{judged.answer.host: judged.why for judged in told if judged.why}, **silent(answers)},
            unbounded=rates.no_bound(found, site, settings),
            notes=(
                *(note for judged in told for note in judged.notes()),
                *rates.unjudged_rates(found, site, settings, options.drop),
            ),
            evidence={judged.whose: judged.data for judged in told},
        )


class _Judged:
    """The measurements of one device.

    Attributes:
        why: the reason why they cannot be judged; empty if they can.
    """

    def __init__(
        self, site: Site, answer: Answer[SustainedLoad], data: SustainedLoad, options: SustainedOptions
    ) -> None:
        self.site, self.answer, self.data, self.options = site, answer, data, options
        self.whose = f"{answer.host} {rates.subject(site, answer)}"
        self.samples, self.strange = read(data.telemetry)
        self.why = self._why()
        self.numbers = self._numbers()
        self.rated: list[rates.Rated] = [
            rates.rated(site, answer, name, value, _UNITS[name]) for name, value in self.numbers.items()
        ]

    def _why(self) -> str:
        if len(self.data.rates) < _FEWEST_RATES:
            return f"{self.whose}: {len(self.data.rates)} rates are too few to compare the last with the first"
        if self.site.device == "cuda" and all(sample.reasons is None for sample in self.samples):
            reason = self.data.trouble or next(iter(self.strange), "no line of nvidia-smi names any")
            return f"{self.whose}: whether it was throttled is not known: {reason}"
        return ""

    def _numbers(self) -> dict[str, float]:
        tflops = [rate / 1e12 for _, rate in self.data.rates]
        numbers: dict[str, float] = {}
        if len(tflops) >= _FEWEST_RATES:
            third = len(tflops) // 3
            first, last = median(tflops[:third]), median(tflops[-third:])
            numbers = {"sustained": last, "sustained_drop": 100.0 * (1.0 - last / first)}
        # The first sample is of the moment when the load begins.
        seen = self.samples[1:]
        clocks = [sample.clock for sample in seen if sample.clock is not None]
        temperatures = [sample.temperature for sample in seen if sample.temperature is not None]
        powers = [sample.power for sample in seen if sample.power is not None]
        numbers |= {"clock_min": min(clocks)} if clocks else {}
        numbers |= {"temperature_max": max(temperatures)} if temperatures else {}
        return numbers | ({"power_mean": mean(powers)} if powers else {})

    def findings(self) -> Iterator[Finding]:
        """Its findings."""
        drop, allowed = self.numbers.get("sustained_drop"), 100.0 * rates.tolerance_of(self.site, self.options.drop)
        if drop is not None and drop > allowed:  #: finding slows_down: the rate falls under load
            message = f"the rate of the last third is {drop:.1f} % below that of the first, {allowed:g} % allowed"
            yield self._finding("slows_down", Severity.ISOLATE, message)
        for reason in throttled(self.samples):
            #: finding throttled: clocks are held down under load, by something else than the power limit
            yield self._finding("throttled", Severity.ISOLATE, f"throttled under load: {reason}")
        hottest = self.numbers.get("temperature_max")
        if hottest is not None and hottest > self.options.temperature_degc:
            message = f"{hottest:g} degC under load, {self.options.temperature_degc:g} degC is usual"
            yield self._finding("hot", Severity.MONITOR, message)  #: finding hot: a device gets hotter than usual

    def _finding(self, kind: ComputeKind, severity: Severity, message: str) -> Finding:
        return finding(self.answer.host, rates.subject(self.site, self.answer), kind, severity, message, _ACTION)

    def notes(self) -> Iterator[str]:
        """Missing measurements."""
        for gap in gaps(self.samples, self.data.rates[-1][0] if self.data.rates else 0.0):
            yield f"{self.whose}: {gap}"
        if self.strange:
            yield f"{self.whose}: {len(self.strange)} lines of telemetry could not be parsed, first {self.strange[0]!r}"
        if self.data.trouble:
            yield f"{self.whose}: {self.data.trouble}"
        missing = [name for name in ("clock_min", "temperature_max", "power_mean") if name not in self.numbers]
        if missing:
            yield f"{self.whose}: not told by this machine: {', '.join(missing)}"
