"""Options of the network checks, and the references that count."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field as Constrained
from pydantic import PositiveFloat, PositiveInt

from pytest_llmbench.checks.base import CheckSettings, Fleet, Site
from pytest_llmbench.checks.network.nodes.answer import Sizes
from pytest_llmbench.core.record.health import Finding, Reading
from pytest_llmbench.core.schema import Strict
from pytest_llmbench.judging.references import applies, missed, unbounded

_GPU = Sizes(bytes=2**30, iterations=20, warm_up=5, timeout_s=60.0, patience_s=120.0)
_CPU = Sizes(bytes=2**20, iterations=8, warm_up=2, timeout_s=5.0, patience_s=30.0)
_TOLERANCE = {"cuda": 0.1, "cpu": 0.5}  # CPU ranks of one machine share its cores


class NetworkOptions(Strict):
    """Options of all network checks. The default depends on the device."""

    bytes: Annotated[int, Constrained(ge=4, multiple_of=4)] | None = None
    """Size of the all_reduce; absent, 1 GiB between GPUs and 1 MiB between CPUs; at scale `smoke` always 1 MiB."""
    iterations: PositiveInt | None = None
    """Calls that are timed; absent, 20 with GPUs, 8 without and at scale `smoke`."""
    warm_up: PositiveInt | None = None
    """Calls before them; absent, 5 with GPUs, 2 without and at scale `smoke`."""
    timeout_s: PositiveFloat | None = None
    """Longest wait in a group; absent, 60 with GPUs, 5 without and at scale `smoke`."""
    patience_s: PositiveFloat | None = None
    """Longest wait for all ranks at the start; absent, 120 with GPUs, 30 without and at scale `smoke`."""
    tolerance: Annotated[float, Constrained(gt=0, lt=1)] | None = None
    """Allowed shortfall from the other nodes (fraction); absent, 0.1 with GPUs, 0.5 without."""

    def sizes(self, site: Site) -> Sizes:
        """Measurement of each group on this site."""
        usual = _CPU if site.device == "cpu" or site.scale == "smoke" else _GPU
        told = {name: getattr(self, name) for name in Sizes.model_fields if name in type(self).model_fields}
        if site.scale == "smoke":
            told["bytes"] = None  # a system's file speaks of the full size
        return usual.model_copy(update={name: value for name, value in told.items() if value is not None})

    def allowed(self, site: Site) -> float:
        """The tolerance on this site."""
        return self.tolerance if self.tolerance is not None else _TOLERANCE[site.device]


class Bounds:
    """References that are for the machine at hand."""

    def __init__(self, fleet: Fleet, settings: CheckSettings) -> None:
        self.system = fleet.site.system
        # At a tiny size nothing reaches what was set for the full one.
        self.references = () if fleet.site.scale == "smoke" else settings.references

    def floor(self, statistic: str, device: str | None, nodes: int, gpus: int) -> float | None:
        """The highest lower bound on a rate, GB/s."""
        reading = Reading(statistic=statistic, value=0.0, unit="GB/s", nodes=nodes, gpus=gpus)
        bounds = [
            reference.at_least.to("GB/s").value
            for reference in self.references
            if reference.statistic == statistic
            and reference.at_least is not None
            and applies(reference, reading, self.system, device or "cpu")
        ]
        return max(bounds, default=None)

    def missed(self, readings: Sequence[Reading], device: str | None) -> list[Finding]:
        """Findings of what nodes miss by themselves."""
        own = [reading for reading in readings if reading.host is not None]
        return list(missed(own, self.references, system=self.system, device=device or "cpu"))

    def lack(self, readings: Sequence[Reading], device: str | None) -> bool:
        """Whether there are readings and no reference is for any of them."""
        return unbounded(readings, self.references, system=self.system, device=device or "cpu")

    def notes(self, statistic: str) -> tuple[str, ...]:
        """Remark for a statistic without a reference."""
        if any(reference.statistic == statistic for reference in self.references):
            return ()
        return (f"no reference for {statistic}: nodes are compared with each other alone",)
