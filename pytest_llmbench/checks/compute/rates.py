"""Shared parts of the compute checks: the probe, its numbers by device, and rates against references and each other."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

from pydantic import Field

from pytest_llmbench.checks.answers import NOT_COMPARED, read_answers
from pytest_llmbench.checks.base import Answer, Check, CheckSettings, Fleet, Probe, Site, deadline_of
from pytest_llmbench.checks.compute.nodes.answer import DeviceRates
from pytest_llmbench.checks.kinds import finding_of_reading
from pytest_llmbench.core.record.health import Finding, Reading
from pytest_llmbench.core.schema import Strict
from pytest_llmbench.core.wire.answers import DeviceAnswer
from pytest_llmbench.judging.outliers import outliers
from pytest_llmbench.judging.references import applies, missed, unbounded

# What the shared probe measures, by the check that judges it.
_PARTS = {"gemm": "gemm", "memory_bandwidth": "memory", "host_device_bandwidth": "host_device"}

Fraction = Annotated[float, Field(gt=0, le=1)]


class RateOptions(Strict):
    """Options of a check that compares the rates of GPUs."""

    tolerance: Fraction | None = None
    """Allowed shortfall from the median (fraction). Default 0.05 on GPUs; not applied on CPUs and at scale `smoke`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rated:
    """A reading of one device, and which model that is."""

    reading: Reading
    device: str

    @property
    def whose(self) -> str:
        """Node and GPU."""
        return f"{self.reading.host} {self.reading.subject}"


def tolerance_of(site: Site, given: float | None) -> float:
    """Allowed difference of rates, as a fraction: as given, or the usual one for this device.

    Other processes may use a CPU's cores meanwhile, and at scale smoke a measurement is too short to judge. No rate is
    below another by its whole value, so 1 flags no device.
    """
    if given is not None:
        return given
    return 0.05 if site.device == "cuda" and site.scale == "full" else 1.0


def side_of(site: Site) -> int:
    """The side of the square matrices: a GPU's full rate needs large ones."""
    if site.device == "cpu":
        return 1024
    return 8192 if site.scale == "full" else 4096


def ask(fleet: Fleet, check: Check, settings: CheckSettings) -> list[Answer[DeviceRates]]:
    """Measure, once, all that the session's checks judge: importing PyTorch takes longer than most of it."""
    site = fleet.site
    wanted = [part for name, part in _PARTS.items() if name == check.name or name in site.selected]
    if site.device == "cpu":
        wanted = [part for part in wanted if part != "host_device"]
    deadline_s = deadline_of(check, settings)
    config = {
        "measure": wanted,
        "side": side_of(site),
        "seconds": 1.5 if site.device == "cuda" and site.scale == "full" else 0.3,
        "timeout_s": deadline_s / 2,
    }
    probe = Probe(
        name="compute",
        entry="pytest_llmbench.checks.compute.nodes.compute:measure",
        config=config,
        ranks_per_node=site.gpus_per_node or 1,
        gpus=site.device == "cuda",
        deadline_s=deadline_s,
    )
    return read_answers(fleet.once(probe), DeviceRates, asked={_PARTS[check.name]: ()})


DeviceData = TypeVar("DeviceData", bound=DeviceAnswer)


def answered(answers: Iterable[Answer[DeviceData]]) -> Iterator[tuple[Answer[DeviceData], DeviceData]]:
    """Ranks that gave an answer, with it."""
    return ((answer, answer.data) for answer in answers if answer.data is not None)


def subject(site: Site, answer: Answer[DeviceData]) -> str:
    """The device that a rank had on its node."""
    return f"GPU {answer.local_rank}" if site.device == "cuda" else "CPU"


def rated(site: Site, answer: Answer[DeviceData], statistic: str, value: float, unit: str) -> Rated:
    """A number that a rank measured."""
    assert answer.data is not None
    gpus = 1 if site.device == "cuda" else 0
    reading = Reading(
        host=answer.host, subject=subject(site, answer), statistic=statistic, value=value, unit=unit, gpus=gpus
    )
    return Rated(reading=reading, device=answer.data.device)


def judge(
    found: Sequence[Rated], site: Site, settings: CheckSettings, *, tolerance: float | None, action: str
) -> Iterator[Finding]:
    """Yield a finding for each rate that misses a reference, and for each that is far below those of its like."""
    yield from below(found, site, settings, action)
    for alike in _alike(found):
        values = {each.whose: each.reading.value for each in alike}
        slow = outliers(values, tolerance=tolerance_of(site, tolerance))
        for each in alike:
            if each.whose in slow:  #: finding outlier: a rate is far below those of its like, by median and MAD
                yield finding_of_reading(each.reading, kind="outlier", what=slow[each.whose].text, action=action)


def below(found: Sequence[Rated], site: Site, settings: CheckSettings, action: str) -> Iterator[Finding]:
    """Yield a finding for each rate that misses a reference; at a tiny size nothing could meet one."""
    references = settings.references if site.scale == "full" else ()
    for each in found:
        yield from missed([each.reading], references, system=site.system, device=each.device, action=action)


def unjudged_rates(found: Sequence[Rated], site: Site, settings: CheckSettings, given: float | None) -> Iterator[str]:
    """Yield notes on rates that were reported and not judged, and why."""
    bounded = {
        reference.statistic
        for reference in settings.references
        for each in found
        if site.scale == "full" and applies(reference, each.reading, site.system, each.device)
    }
    if free := sorted({each.reading.statistic for each in found} - bounded):
        yield f"no reference of this machine at this scale bounds {', '.join(free)}"
    if found and tolerance_of(site, given) == 1.0:
        yield NOT_COMPARED


def no_bound(found: Sequence[Rated], site: Site, settings: CheckSettings) -> bool:
    """Whether no reference is for any of these rates."""
    references = settings.references if site.scale == "full" else ()
    return bool(found) and all(
        unbounded([each.reading], references, system=site.system, device=each.device) for each in found
    )


def _alike(found: Iterable[Rated]) -> Iterable[list[Rated]]:
    groups: dict[tuple[str, str], list[Rated]] = {}
    for each in found:
        groups.setdefault((each.reading.statistic, each.device), []).append(each)
    return groups.values()
