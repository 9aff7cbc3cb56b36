"""Shared parts of the compute checks: the probe, its numbers by device, and rates against bounds and each other."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Literal, TypeVar

from pydantic import Field

from pytest_llmbench.checks.answers import read_answers
from pytest_llmbench.checks.base import Answer, CheckDefaults, CheckSettings, Fleet, Site, deadline_of
from pytest_llmbench.checks.compute.nodes.answer import DeviceRates
from pytest_llmbench.checks.findings import (
    NOT_COMPARED,
    Bounds,
    FindingMaker,
    ReadingLaw,
    SharedKind,
    explain,
    find_outliers,
    make_finding,
)
from pytest_llmbench.core.record.health import Finding, Reading
from pytest_llmbench.core.schema import Strict
from pytest_llmbench.core.wire.answers import DeviceAnswer

ComputeKind = Literal[
    "below_peak", "hot", "not_repeatable", "other_numbers", "other_product", "slows_down", "throttled", "wrong_product",
]  # fmt: skip
finding: FindingMaker[ComputeKind | SharedKind] = make_finding

# Part of the shared probe, by the check that judges it.
_PARTS = {"gemm": "gemm", "memory_bandwidth": "memory", "host_device_bandwidth": "host_device"}
Fraction = Annotated[float, Field(gt=0, le=1)]
DeviceData = TypeVar("DeviceData", bound=DeviceAnswer)


class RateOptions(Strict):
    """Options of a check that compares the rates of GPUs."""

    tolerance: Fraction | None = None
    """Allowed shortfall from the median (fraction). Default 0.05 on GPUs; not applied on CPUs and at scale `smoke`."""


def tolerance_of(site: Site, given: float | None) -> float:
    """Allowed shortfall of rates, as a fraction: as given, or the usual one for this device.

    Other processes may use a CPU's cores meanwhile, and at scale smoke a measurement is too short to judge. A
    tolerance of 1 accepts every rate.
    """
    return given if given is not None else 0.05 if site.is_full_gpu else 1.0


def side_of(site: Site) -> int:
    """The side of the square matrices: a GPU's full rate needs large ones."""
    if site.device == "cpu":
        return 1024
    return 8192 if site.scale == "full" else 4096


class DeviceCheck(CheckDefaults):
    """A check of the rates of devices; `part` is its part of `DeviceRates`."""

    family = "compute"
    part: str

    def ask(self, fleet: Fleet, settings: CheckSettings) -> list[Answer[DeviceRates]]:
        """Measure, once, all that the session's checks judge: importing PyTorch takes longer than most of it."""
        site = fleet.site
        parts = [part for name, part in _PARTS.items() if name == self.name or name in site.selected]
        config = {
            "measure": [part for part in parts if part != "host_device" or site.device == "cuda"],
            "side": side_of(site),
            "seconds": 1.5 if site.is_full_gpu else 0.3,
            "timeout_s": deadline_of(self, settings) / 2,
        }
        ranks = site.gpus_per_node or 1
        probe = self.probe_devices(site, settings, "compute:measure", config, name="compute", ranks_per_node=ranks)
        return read_answers(fleet.once(probe), DeviceRates, asked={self.part: ()})


def list_answered(answers: Iterable[Answer[DeviceData]]) -> Iterator[tuple[Answer[DeviceData], DeviceData]]:
    """Ranks that gave an answer, with it."""
    return ((answer, answer.data) for answer in answers if answer.data is not None)


def subject(site: Site, answer: Answer[DeviceData]) -> str:
    """The device that a rank had on its node."""
    return f"GPU {answer.local_rank}" if site.device == "cuda" else "CPU"


class Rates:
    """Readings of devices, judged by the bounds of their model and compared with devices of the same model."""

    def __init__(
        self, site: Site, settings: CheckSettings, tolerance: float | None, law: ReadingLaw | None = None,
        why: Callable[[Finding], tuple[str, str]] | None = None,
    ) -> None:  # fmt: skip
        """`why` has the cause of a rate that misses its bound, and the cure of a setting."""
        self.readings: list[Reading] = []
        self._by_model: dict[str, list[Reading]] = defaultdict(list)
        self._site, self._bounds = site, Bounds(site, settings, law=law)
        self._tolerance, self._why = tolerance_of(site, tolerance), why or (lambda _: ("", ""))

    def add(self, answer: Answer[DeviceData], statistic: str, value: float, unit: str) -> None:
        assert answer.data is not None
        reading = Reading(
            host=answer.host, subject=subject(self._site, answer), statistic=statistic, value=value, unit=unit,
            gpus=1 if self._site.device == "cuda" else 0,
        )  # fmt: skip
        self.readings.append(reading)
        self._by_model[answer.data.device].append(reading)

    def judge(self, action: str) -> Iterator[Finding]:
        """Yield a finding for each rate that misses a reference, or that physics fails or warns of."""
        for model, readings in self._by_model.items():
            for missed in self._bounds.judge(readings, device=model, action=action):
                yield explain(missed, *self._why(missed))

    def compare(self, action: str) -> Iterator[Finding]:
        """Yield a finding for each rate that is far below those of the same model."""
        for readings in self._by_model.values():
            yield from find_outliers(readings, tolerance=self._tolerance, action=action)

    def unmeasured(self) -> dict[str, str]:
        """The nodes where a device lacks a number that a reference asks for, each with the reason."""
        reasons: dict[str, str] = {}
        for model, readings in self._by_model.items():
            devices: dict[tuple[str, str], list[Reading]] = defaultdict(list)
            for reading in readings:
                devices[str(reading.host), reading.subject].append(reading)
            for (host, device), own in devices.items():
                for reason in self._bounds.unmeasured(own, model, 1, own[0].gpus):
                    reasons.setdefault(host, f"{device}: {reason}")
        return reasons

    @property
    def unbounded(self) -> bool:
        """True if something was measured without any reference for it."""
        covered = (self._bounds.covers(readings, model) for model, readings in self._by_model.items())
        return bool(self.readings) and not any(covered)

    def lines(self) -> tuple[str, ...]:
        return tuple(line for model, readings in self._by_model.items() for line in self._bounds.lines(readings, model))

    def notes(self) -> Iterator[str]:
        """Yield notes on rates that were only reported, with the reason."""
        bounded = {
            reading.statistic
            for model, readings in self._by_model.items()
            for reading in readings
            if self._bounds.covers([reading], model)
        }
        if free := sorted({reading.statistic for reading in self.readings} - bounded):
            yield f"no reference of this machine at this scale bounds {', '.join(free)}"
        if self.readings and self._tolerance == 1.0:
            yield NOT_COMPARED
