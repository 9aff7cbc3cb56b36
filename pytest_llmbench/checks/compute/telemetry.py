"""Reading and judging what telemetry told of a device under load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pytest_llmbench.core.record.telemetry import SLOWDOWNS

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
