"""Findings: remarks about a sane run, which change no verdict.

Some report unlike steps: a mean that includes a longer warm-up, an evaluation or a drift is a poor forecast of the next
steps. Steps on CPUs are exempt, as other processes make them unsteady. Steps that a framework skipped, because their
gradients overflowed, are untrained, yet counted in its rates.
"""

import statistics as stats
from collections.abc import Iterator, Sequence

from pytest_llmbench.core.quantity import listed
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.record.series import RankInfo, StepSeries
from pytest_llmbench.core.record.steady import Steady
from pytest_llmbench.core.record.telemetry import SLOWDOWNS, GpuTelemetry
from pytest_llmbench.judging.agreement import late_s, pace
from pytest_llmbench.judging.sanity import Evidence, outside
from pytest_llmbench.judging.sanity.rates import clock_share
from pytest_llmbench.judging.statistics import judged_steps, steady_of

# GPUs of one model in one run scatter by less than this share.
_UNLIKE = 0.1
# The least share of the published peak that large matrix products reach on a GPU in good order.
_LEAST_OF_PEAK = 0.5
# The time from one step to the next may exceed the step's own duration by this share.
_BETWEEN = 0.2
# Time outside of steps is reported above this share of the run and above the seconds that ending or starting takes.
_OUTSIDE_SHARE, _AROUND_S, _START_S = 0.2, 5.0, 60.0
# Slow steps and a drift are reported only of runs with at least this many judged steps.
_FEWEST = 10
# This share of the judged steps may be skipped: in fp16 the loss scale is found at the start, and tried again every 100
# to 1000 steps.
_MOST_SKIPPED = 0.05
_SKIPPED = "number_of_skipped_iterations"
# The least SM clock under load, as a share of that of the published peak: GPUs in good order reach 0.7 at their power
# limit.
_LEAST_CLOCK = 0.6
# Gradients take no longer than by this link, B/s, after ranks were woken up; a wait that long is a share of the step.
_SLOWEST_LINK, _WAKING_S, _AWAITED = 1e8, 0.1, 0.25
# Rates and totals of frameworks that follow from the duration of steps, and the least values with enough digits.
_RATES = frozenset({
    "throughput_per_gpu", "tflops", "samples_per_second", "tokens_per_gpu_per_second", "wps", "ups", "Samples/sec",
    "CurrSamplesPerSec", "RunningAvgSamplesPerSec",
})  # fmt: skip
_READABLE = {"throughput_per_gpu": 5.0, "tflops": 5.0}
_TOTALS = frozenset({"throughput_samples_per_s", "execution_time_s", "done_training_s"})
# Times of lines confirm durations where they span this many times the delay of a line.
_CLEAR = 10.0
# A drift is reported above this share of the mean, and this many half widths of the interval: four standard errors.
_DRIFT_SHARE, _DRIFT_WIDTHS = 0.01, 6.0


def findings(e: Evidence) -> tuple[str, ...]:
    """Collect all findings of a run, a sentence each."""
    return (
        *_throttled(e),
        *_capped(e),
        *_awaited(e),
        *_unlike_ranks(e),
        *_far_from_peak(e),
        *_time_outside(e),
        *_time_between(e),
        *_bad_ends(e),
        *e.series.transport,
        *_some_skipped(e),
        *unsteady(e),
    )


def long_start(steady: Steady | None) -> Iterator[str]:
    """Yield a finding if more steps were left out at the start than were judged."""
    if steady is not None and steady.left_out > steady.judged:
        yield (
            f"the speed is that of the last {steady.judged} steps: the {steady.left_out} before them are left out as "
            "warm-up and slow start"
        )


def unconfirmed(e: Evidence) -> tuple[str, ...]:
    """Collect the facts behind this run's numbers that only one place of its logs shows."""
    return (*_of_a_log(e),) if e.kind == "command" else (*_unreported(e),)


def _of_a_log(e: Evidence) -> Iterator[str]:
    claimed = {claim.name for claim in e.series.claims}
    if e.series.world_size is None and "world_size" not in claimed and not e.series.nodes:
        yield f"no line gives the number of ranks, which is taken to be {e.topology.world_size}"
    printed = {setting.name.rpartition(".")[2] for setting in e.series.settings}
    if not (claimed | printed) & {"layers", "hidden_size", "parameters_of_rank", "parameters"}:
        yield f"no line describes the model, which is taken to be that of recipe {e.recipe.name}"
    if any(step.seconds for step in e.series.steps) and not _is_timed_twice(e):
        yield "the duration of a step stands in one place, without times, rates or an event file that agree with it"


def _is_timed_twice(e: Evidence) -> bool:
    series, steps = e.series, e.series.steps
    rates = {name for step in steps for name, value in step.reported.items() if value >= _READABLE.get(name, 1e-9)}
    if rates & _RATES or series.totals.keys() & _TOTALS or series.timed_twice:
        return True
    stamps = [step.at for step in steps if step.at is not None]
    return len(stamps) > 1 and stamps[-1] - stamps[0] >= _CLEAR * late_s(e.topology)


def _unreported(e: Evidence) -> Iterator[str]:
    """Yield what ranks of our own left out of their account of the training."""
    if e.expected is None or e.expected.parameters is None:
        return
    named = ("dropout", "activation_checkpointing", "optimizer_steps", "repeated")
    staged = e.recipe.parallelism.pipeline > 1  # only its ends are fed
    sharded = e.recipe.parallelism.sharding in {"gradients", "full"} or e.topology.world_size == 1
    wanted = [name for name in (named if sharded else (*named, "weights")) if name != "repeated" or not staged]
    silent = {
        name.replace("_", " "): [
            info.rank for info in e.series.ranks if info.training and getattr(info.training, name) is None
        ]
        for name in wanted
    }
    lacking = [name for name, ranks in silent.items() if ranks]
    if lacking:
        yield f"the step logs of ranks {listed(sorted(set().union(*silent.values())))} lack {', '.join(lacking)}"
    again = sum(info.training.repeated or 0 for info in e.series.ranks if info.training)
    if again and e.recipe.data.kind != "synthetic":
        yield f"{again} micro batches had been trained on before: the token file is short, or a batch was repeated"


def product_rates(ranks: Sequence[RankInfo]) -> dict[int, float]:
    """Highest matrix-product rate of each rank that measured one, TFLOP/s."""
    return {info.rank: info.matmul_flops_per_s / 1e12 for info in ranks if info.matmul_flops_per_s}


def sm_clocks(telemetry: Sequence[GpuTelemetry]) -> dict[int, float]:
    """Mean SM clock of each rank's GPU where it is known and above 0, MHz."""
    return {gpu.rank: gpu.sm_clock_mhz for gpu in telemetry if gpu.sm_clock_mhz}


def slowdowns(gpu: GpuTelemetry) -> str:
    """The reasons for which a GPU was held back, each with its number of samples."""
    return ", ".join(f"{name} in {gpu.reasons[name]}" for name in SLOWDOWNS.values() if gpu.reasons.get(name))


def _place(e: Evidence, rank: int) -> str:
    return f"rank {rank} on {next((i.host for i in e.series.ranks if i.rank == rank), 'an unknown host')}"


def _throttled(e: Evidence) -> Iterator[str]:
    held = [
        f"{_place(e, gpu.rank)} ({slowdowns(gpu)} of {gpu.samples} samples)"
        for gpu in e.series.telemetry
        if gpu.throttled
    ]
    if held:
        yield f"throttled in the judged steps: {listed(held)}: the speed is that of GPUs that were held back"


def _capped(e: Evidence) -> Iterator[str]:
    """Yield GPUs whose power limit, or one set by hand, keeps them far below the clock of their published peak."""
    low = []
    for gpu in e.series.telemetry:
        device = next((info.device for info in e.series.ranks if info.rank == gpu.rank), "")
        share = clock_share(gpu, device)
        if share is not None and share < _LEAST_CLOCK:
            capped = f", at the power limit in {gpu.power_capped} of {gpu.samples} samples" if gpu.power_capped else ""
            low.append(f"{_place(e, gpu.rank)} {gpu.sm_clock_mhz:.4g} MHz{capped}")
    if low:
        yield (
            f"SM clocks below {100 * _LEAST_CLOCK:g} % of that of the published peak: {listed(low)}: the speed is that "
            "of GPUs that were held back"
        )


def _awaited(e: Evidence) -> Iterator[str]:
    """Yield a finding if all ranks wait for gradients longer than any link takes: a log is missing."""
    times, layout = e.series.times, e.recipe.parallelism
    if times is None or times.transfer_s is None or layout.sharding != "none" or layout.model_parallel_size > 1:
        return
    took = stats.fmean(rank.seconds or 0.0 for rank in times.ranks)
    gradient = 4 * max((info.training.parameters for info in e.series.ranks if info.training), default=0)
    needed = _WAKING_S + 2 * gradient / _SLOWEST_LINK
    if times.transfer_s > needed + _AWAITED * took:
        yield (
            f"every rank waits {times.transfer_s:.3g} s or more of each {took:.3g} s step for gradients of "
            f"{gradient / 1e6:.3g} MB: the rank that they wait for has another one's log, or links are very slow"
        )


def _unlike_ranks(e: Evidence) -> Iterator[str]:
    clocks = sm_clocks(e.series.telemetry)
    rates = product_rates(e.series.ranks) if e.topology.gpus else {}  # rates of shared CPUs are too unsteady
    for what, unit, values in (("clocks", "MHz", clocks), ("matrix-product rates", "TFLOP/s", rates)):
        if len(values) < 2:
            continue
        usual = stats.median(values.values())
        unlike = {rank: value for rank, value in values.items() if abs(value - usual) > _UNLIKE * usual}
        if unlike:
            odd = [f"{_place(e, rank)} {value:.4g} {unit}" for rank, value in unlike.items()]
            yield f"the ranks' {what} differ: {listed(odd)}; the median is {usual:.4g} {unit}"


def _far_from_peak(e: Evidence) -> Iterator[str]:
    if e.peak_tflops is None:
        return
    peak, _ = e.peak_tflops  # for fp32 the peak without TF32, as a framework may use either
    rates = product_rates(e.series.ranks)
    low = [f"{_place(e, rank)} {rate:.4g} TFLOP/s" for rank, rate in rates.items() if rate < _LEAST_OF_PEAK * peak]
    if low:
        yield (
            f"matrix products reached less than {100 * _LEAST_OF_PEAK:g} % of the published peak of {peak:g} "
            f"TFLOP/s: {listed(low)}: a share of the measured rate looks better than it is"
        )


def _time_outside(e: Evidence) -> Iterator[str]:
    parts = outside(e)
    if not parts or e.recipe.scale != "full":  # at scale smoke, starting and ending take most of the time
        return
    steps_s, around_s, whole = parts["steps_s"], parts["around_s"], sum(parts.values())
    rest = whole - steps_s
    long_around = around_s > max(_AROUND_S, _OUTSIDE_SHARE * (steps_s + around_s))
    if long_around or rest > max(_START_S, _OUTSIDE_SHARE * whole):
        start = f", {parts['before_s']:.4g} s of it before the first" if "before_s" in parts else ""
        share = f"{100 * rest / whole:.3g} % of the run ({rest:.4g} of {whole:.4g} s)"
        yield f"{share} was outside of steps{start}"


def _time_between(e: Evidence) -> Iterator[str]:
    ratio = pace(e.series) if e.kind == "command" and e.topology.gpus else None
    if ratio is not None and ratio > 1 + _BETWEEN:
        yield (
            f"by the times of its lines or event files a step takes {100 * (ratio - 1):.3g} % longer than it reports, "
            "in the median: its own rates leave out the time between steps (input, logs)"
        )


def _bad_ends(e: Evidence) -> Iterator[str]:
    if e.series.bad_ends and e.series.completed is not None:
        yield (
            f"processes of the run ended with an error, although the work was done: {listed(list(e.series.bad_ends))}: "
            "look at what its ranks do as they end"
        )


def too_many_skipped(recipe: Recipe, series: StepSeries) -> Iterator[str]:
    """Yield the problem in a sentence if too many of the judged steps were skipped."""
    count, whole = _count_skipped(recipe, series)
    if count > _MOST_SKIPPED * whole:
        yield (
            f"{count:g} of {whole} judged steps were skipped, as their gradients overflowed: such steps train nothing; "
            f"let the loss scale settle within warm_up.steps, or give a smaller initial one"
        )


def _some_skipped(e: Evidence) -> Iterator[str]:
    """Yield the number of skipped steps and their effect on the rate, if few enough for the others to be judged."""
    if discarded := e.series.totals.get("gradient_overflows"):
        yield (
            f"{discarded:g} passes were discarded, as their gradients overflowed: the rate has their time, and not "
            "their words"
        )
    count, whole = _count_skipped(e.recipe, e.series)
    if 0 < count <= _MOST_SKIPPED * whole:
        yield (
            f"{count:g} of {whole} judged steps were skipped, as their gradients overflowed: their tokens count in the "
            f"rate, and {100 * count / whole:.2g} % of it trained nothing"
        )


def _count_skipped(recipe: Recipe, series: StepSeries) -> tuple[float, int]:
    """Count skipped and all judged steps, by the log's running sums since the warm-up, else by its lines."""
    if not series.skipped:
        judged = judged_steps(recipe, series.steps)
        return sum(step.reported.get(_SKIPPED, 0.0) for step in judged), sum(step.interval for step in judged)
    sums = [(step, count) for step, count in series.skipped if step <= recipe.warm_up.steps]
    (first, had), (last, have) = sums[-1] if sums else (0, 0), series.skipped[-1]
    return have - had, last - first


def unsteady(e: Evidence) -> Iterator[str]:
    """Yield the judged steps of a run on GPUs that are slower than the others, and a drift of those that are alike."""
    steps = [step for step in judged_steps(e.recipe, e.series.steps) if step.seconds]
    steady = steady_of(steps) if e.topology.gpus and len(steps) >= _FEWEST else None
    if steady is None:
        return
    usual = steady.pauses.usual
    slow = [steps[at] for at in steady.pauses.at if (steps[at].seconds or 0.0) > usual]
    if slow:
        times = stats.fmean(step.seconds or 0.0 for step in slow) / usual
        yield (
            f"slow steps among the judged ones ({times:.3g} times the median of {usual:.4g} s): "
            f"{listed([step.step for step in slow])}: a short warm-up, an evaluation, a checkpoint or a stall?"
        )
    if abs(steady.drift or 0.0) > max(_DRIFT_SHARE, _DRIFT_WIDTHS * steady.half_width / steady.mean):
        yield (
            f"the judged steps drift by {100 * (steady.drift or 0.0):+.2g} % from the first to the last: the speed is "
            "not settled"
        )
