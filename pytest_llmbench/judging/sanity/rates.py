"""Checks that measured rates are within the limits of the hardware."""

import math
import re
import statistics as stats
from collections.abc import Iterator, Mapping, Sequence

from pytest_llmbench.core.record.records import Metric, Problem
from pytest_llmbench.core.record.series import Step
from pytest_llmbench.core.record.telemetry import GpuTelemetry
from pytest_llmbench.judging.sanity.evidence import Evidence, problem

# GPUs may run at a little more than the clock that their published peak is for.
_MOST_OF_PEAK = 1.1
# The names of TFLOP/s per GPU in Megatron-LM, in JSC's version of it and in DeepSpeed-Chat.
_PER_GPU = frozenset({"throughput_per_gpu", "tflops", "TFLOPs"})


# The SM clock that a GPU's published peak is for, MHz, by words of its name.
_CLOCK_OF_PEAK = {"V100": 1530, "A100": 1410, "H100": 1830, "H200": 1830, "H100 PCIe": 1755, "B200": 1850}


def clock_share(gpu: GpuTelemetry, device: str) -> float | None:
    """Share of a GPU's mean SM clock in that of its published peak; None where one is unknown."""
    known = [clock for name, clock in _CLOCK_OF_PEAK.items() if re.search(rf"\b{name}\b", device)]
    return gpu.sm_clock_mhz / known[-1] if known and gpu.sm_clock_mhz is not None else None


def check_products(e: Evidence) -> Iterator[Problem]:
    """Refuse a measured rate of matrix products above the peak of the GPU."""
    _, peak = e.peak_tflops or (None, None)
    for info in e.series.ranks if peak is not None else ():
        if info.matmul_flops_per_s is not None and info.matmul_flops_per_s > _MOST_OF_PEAK * 1e12 * (peak or 0.0):
            #: problem implausible: a rate above the GPU's published peak
            yield problem(
                "implausible",
                f"rank {info.rank} on {info.host} measured {info.matmul_flops_per_s / 1e12:.4g} TFLOP/s of matrix "
                f"products; the published peak of {info.device} is {peak:g} at {e.recipe.precision}",
            )


def check_logged_rates(e: Evidence) -> Iterator[Problem]:
    """Refuse a framework's own TFLOP/s per GPU above the peak of the GPU."""
    _, peak = e.peak_tflops or (None, None)
    for step in e.series.steps if peak is not None else ():
        for name in _PER_GPU & step.reported.keys():
            if step.reported[name] > _MOST_OF_PEAK * (peak or 0.0):
                yield problem(
                    "implausible",
                    f"the line of step {step.step} says {step.reported[name]:g} TFLOP/s per GPU; the published peak of "
                    f"this GPU is {peak:g} at {e.recipe.precision}",
                )


def implausible(
    metrics: Mapping[str, Metric], timed: Sequence[Step] = (), clocks: Sequence[float | None] = ()
) -> Problem | None:
    """Return the problem of an impossible number, such as more FLOP/s than the hardware has; None without one.

    `metrics` and `timed` are those of the judged steps; `timed` is empty unless each was timed at the end of its work.
    `clocks` has the share of each GPU's clock in that of its published peak.
    """
    known = [clock for clock in clocks if clock is not None]
    # Training may exceed the measured rate a little, with larger products or on a quieter machine. CPU ranks repeat
    # their measurement until they reach the highest rate twice, so a load of some seconds leaves it as it is.
    loaded = "the step times are wrong, or another program slowed every measurement of the rate, and no step"
    shares = (
        ("mfu", "an MFU", 100.0, "the step times, the model, the GPUs' samples or the system file's peak are wrong"),
        ("matmul_fraction", "a share of the measured matrix-product rate", 150.0, loaded),
    )
    durations = {step.step: step.seconds for step in timed if step.seconds}
    for statistic, name, most, reason in shares:
        share = metrics[statistic].value if statistic in metrics else 0.0
        slow = statistic == "mfu" and bool(known) and share > _MOST_OF_PEAK * 100.0 * stats.fmean(known)
        if slow or share > most:
            clock = f" at {100 * stats.fmean(known):.3g} % of the SM clock of the published peak" if slow else ""
            return problem("implausible", f"{name} of {share:.4g} %{clock} is more than the hardware can do: {reason}")
        step, fastest = min(durations.items(), key=lambda item: item[1], default=(0, math.inf))
        reached = share * stats.fmean(durations.values()) / fastest if durations else 0.0
        if reached > most:
            return problem(
                "implausible",
                f"step {step} took {fastest:.4g} s, which would be {name} of {reached:.4g} %, more than the hardware "
                "can do: its work was timed with another step, and the sum of all steps is wrong as well",
            )
    return None
