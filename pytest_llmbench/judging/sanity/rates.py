"""Whether measured rates are within what the hardware can do."""

import statistics as stats
from collections.abc import Iterator, Mapping, Sequence

from pytest_llmbench.core.record.records import Metric, Problem
from pytest_llmbench.core.record.series import Step
from pytest_llmbench.judging.sanity.evidence import Evidence

# GPUs may run at a little more than the clock that their published peak is for.
_MOST_OF_PEAK = 1.1
# By the words of Megatron-LM, of JSC's version and of DeepSpeed-Chat.
_PER_GPU = frozenset({"throughput_per_gpu", "tflops", "TFLOPs"})


def products(e: Evidence) -> Iterator[Problem]:
    """Refuse a measured rate of matrix products that the GPU does not have."""
    _, peak = e.peak_tflops or (None, None)
    for info in e.series.ranks if peak is not None else ():
        if info.matmul_flops_per_s is not None and info.matmul_flops_per_s > _MOST_OF_PEAK * 1e12 * (peak or 0.0):
            yield Problem(  #: problem implausible: an MFU, or a matrix-product rate, above the GPU's published peak
                kind="implausible",
                message=f"rank {info.rank} on {info.host} measured {info.matmul_flops_per_s / 1e12:.4g} TFLOP/s of "
                f"matrix products; the published peak of {info.device} is {peak:g} at {e.recipe.precision}",
            )


def logged(e: Evidence) -> Iterator[Problem]:
    """Refuse a framework's own TFLOP/s per GPU that the GPU does not have, whatever work it counts."""
    _, peak = e.peak_tflops or (None, None)
    for step in e.series.steps if peak is not None else ():
        for name in _PER_GPU & step.reported.keys():
            if step.reported[name] > _MOST_OF_PEAK * (peak or 0.0):
                yield Problem(
                    kind="implausible",
                    message=f"the line of step {step.step} says {step.reported[name]:g} TFLOP/s per GPU; the published "
                    f"peak of this GPU is {peak:g} at {e.recipe.precision}",
                )


def implausible(metrics: Mapping[str, Metric], timed: Sequence[Step] = ()) -> Problem | None:
    """Return why a measured number cannot be true, such as more FLOP/s than the hardware has.

    The metrics are of the judged steps. `timed` are these, where each was timed by itself, at the end of its work.
    """
    mfu = metrics.get("mfu")
    if mfu is not None and mfu.value > 100.0:
        return Problem(
            kind="implausible",
            message=f"an MFU of {mfu.value:.4g} % is more than the hardware can do: the step times, the model "
            f"or the peak in the system file are wrong",
        )
    # Training may have larger products than the measurement, or fewer neighbours; step times that are wrong by a factor
    # show nevertheless. CPU ranks measure until they reach their highest rate twice, so that a load of some seconds
    # beside one measurement does not lower it.
    fraction = metrics.get("matmul_fraction")
    if fraction is not None and fraction.value > 150.0:
        return Problem(
            kind="implausible",
            message=f"training at {fraction.value:.4g} % of the measured matrix-product rate is not possible: "
            f"the step times are wrong, or something else loaded the machine each time that the rate was measured, "
            f"and not in between",
        )
    return _too_fast(timed, "an MFU", mfu, 100.0) or _too_fast(
        timed, "a share of the measured matrix-product rate", fraction, 150.0
    )


def _too_fast(timed: Sequence[Step], name: str, share: Metric | None, most: float) -> Problem | None:
    """Say which step would have too large a share of the hardware's rate, when all of them together have `share`."""
    durations = {step.step: step.seconds for step in timed if step.seconds}
    if share is None or not durations:
        return None
    step, fastest = min(durations.items(), key=lambda item: item[1])
    reached = share.value * stats.fmean(durations.values()) / fastest
    if reached <= most:
        return None
    return Problem(
        kind="implausible",
        message=f"step {step} took {fastest:.4g} s, which would be {name} of {reached:.4g} %, more than the hardware "
        f"can do: its work was timed with another step, and the sum of all steps is wrong as well",
    )
