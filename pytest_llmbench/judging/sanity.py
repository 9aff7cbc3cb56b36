"""The sanity gate: a run that is not whole, finite and plausible never yields a number."""

from __future__ import annotations

import math
import statistics as stats
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from pytest_llmbench.core.recipes import Recipe
from pytest_llmbench.core.records import Metric, Problem
from pytest_llmbench.core.series import Step, StepSeries
from pytest_llmbench.core.topology import Topology
from pytest_llmbench.judging.references import same_gpu

# Clocks of two processes on two nodes, and the time between a step's end and the observer's look.
_WALL_CLOCK_SLACK_S = 5.0
# Losses of a few noisy steps may wander; a training that ends this far above its start went wrong.
_LOSS_RISE_NAT = 0.05
# Of a framework's step lines, this share may be unreadable (two ranks that wrote at once) before nothing is judged.
_MOST_UNREAD = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What the gate looks at.

    Attributes:
        kind: `ranks`, where every rank kept our own step log, or `command`, where a framework's log is all there is.
        hosts: the nodes the run was given.
        wall_s: time from launch to end by the observer's own clock, seconds; None for logs made elsewhere.
        gpu: the GPU model the system file promises, None when it promises none.
        device: what a command's ranks trained on, as its driver found; ranks of our own say so themselves.
        proof: what would have proved that the work was done, in words.
        cut_off: how the run was cut off at its time limit, as others than its log say; None where nobody does.
        doubts: what the engine finds contradictory in its log.
    """

    recipe: Recipe
    topology: Topology
    series: StepSeries
    hosts: tuple[str, ...]
    wall_s: float | None
    gpu: str | None
    kind: Literal["ranks", "command"] = "ranks"
    device: str | None = None
    proof: str = ""
    cut_off: str | None = None
    doubts: tuple[str, ...] = ()


def first_problem(evidence: Evidence) -> Problem | None:
    """Return the first reason why the run cannot be judged, the most telling ones first."""
    checks = _OF_RANKS if evidence.kind == "ranks" else _OF_A_COMMAND
    for check in checks:
        for problem in check(evidence):
            return problem
    return None


def implausible(metrics: Mapping[str, Metric], timed: Sequence[Step] = ()) -> Problem | None:
    """Return why a measured number cannot be true, such as more FLOP/s than the hardware has.

    Args:
        metrics: of the judged steps.
        timed: these steps, where each was timed by itself, at the end of its work.
    """
    mfu = metrics.get("mfu")
    if mfu is not None and mfu.value > 100.0:
        return Problem(
            kind="implausible",
            message=f"an MFU of {mfu.value:.4g} % is more than the hardware can do: the step times, the model "
            f"or the peak in the system file are wrong",
        )
    # A matrix product measured on a loaded machine can come out low, so a little over 100 % is possible.
    fraction = metrics.get("matmul_fraction")
    if fraction is not None and fraction.value > 150.0:
        return Problem(
            kind="implausible",
            message=f"training at {fraction.value:.4g} % of the measured matrix-product rate is not possible: "
            f"the step times are wrong, or something else loaded the machine while the rate was measured",
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


def _unreadable(e: Evidence) -> Iterator[Problem]:
    if e.series.unreadable:
        count = max(e.series.unread, len(e.series.unreadable))
        lines = "line that looks like a step" if count == 1 else "lines that look like steps"
        yield Problem(
            kind="unreadable_log",
            message=f"{count} {lines} could not be read, first {e.series.unreadable[0]}",
            log=e.series.unreadable[0].partition(":")[0],
        )


def _ranks(e: Evidence) -> Iterator[Problem]:
    world = e.topology.world_size
    here = {info.rank for info in e.series.ranks}
    missing = sorted(set(range(world)) - here)
    if missing:
        yield Problem(
            kind="ranks_missing",
            message=f"{len(missing)} of {world} ranks never started: {_list(missing)}",
        )
    unended = sorted(info.rank for info in e.series.ranks if not info.ended)
    if unended:
        yield Problem(
            kind="no_evidence_of_completion",
            message=f"{len(unended)} of {world} ranks did not say that they finished: {_list(unended)}",
        )


def _hosts(e: Evidence) -> Iterator[Problem]:
    hosts = {info.host for info in e.series.ranks}
    if len(hosts) != e.topology.nodes:
        yield Problem(
            kind="wrong_nodes",
            message=f"the ranks ran on {len(hosts)} hosts ({_list(sorted(hosts))}); asked were {e.topology.nodes} "
            f"nodes ({_list(e.hosts)})",
        )


def _hardware(e: Evidence) -> Iterator[Problem]:
    devices = {info.device for info in e.series.ranks} | ({e.device} if e.device is not None else set())
    if len(devices) > 1:
        yield Problem(
            kind="wrong_hardware", message=f"the ranks trained on different devices: {_list(sorted(devices))}"
        )
    strangers = sorted(device for device in devices if e.gpu and e.topology.gpus and not same_gpu(e.gpu, device))
    if strangers:
        yield Problem(
            kind="wrong_hardware",
            message=f"the system file promises {e.gpu}; the ranks saw {_list(strangers)}: choose the system that fits",
        )


def _steps(e: Evidence) -> Iterator[Problem]:
    complete = [step for step in e.series.steps if step.ranks == e.topology.world_size]
    numbers = [step.step for step in complete]
    if numbers != list(range(1, e.recipe.steps + 1)):
        yield Problem(
            kind="steps_missing",
            message=f"{len(complete)} of {e.recipe.steps} steps were logged by all {e.topology.world_size} ranks",
        )


def _work(e: Evidence) -> Iterator[Problem]:
    for step in e.series.steps:
        # A framework's log rounds large counts to six digits; ours does not.
        slack = 1e-4 if e.kind == "command" else 0.0
        work = ((step.tokens, e.recipe.tokens_per_step), (step.samples, e.recipe.samples_per_step))
        if any(counted is not None and not math.isclose(counted, due, rel_tol=slack) for counted, due in work):
            yield Problem(
                kind="wrong_work",
                message=f"step {step.step} counted {step.tokens} tokens in {step.samples} sequences; the recipe says "
                f"{e.recipe.tokens_per_step} in {e.recipe.samples_per_step}",
            )


def _finite(e: Evidence) -> Iterator[Problem]:
    for step in e.series.steps:
        for name, value in (("loss", step.loss), ("grad norm", step.grad_norm)):
            if value is not None and not math.isfinite(value):
                yield Problem(kind="not_finite", message=f"{name} is {value} at step {step.step}")


def _falling(e: Evidence) -> Iterator[Problem]:
    losses = [step.loss for step in e.series.steps if step.loss is not None]
    if not losses:
        return
    tail = losses[-max(1, len(losses) // 4) :]
    last = sum(tail) / len(tail)  # math.fsum raises where the sum is infinite
    if last > losses[0] + _LOSS_RISE_NAT:
        first = next(step.step for step in e.series.steps if step.loss is not None)
        yield Problem(
            kind="loss_rises",
            message=f"the loss rose from {losses[0]:.4g} at step {first} to {last:.4g} over the last quarter: it does "
            f"not train",
        )


def _clock(e: Evidence) -> Iterator[Problem]:
    durations = [step.seconds for step in e.series.steps if step.seconds is not None]
    seconds, begun = 0.0, math.inf
    for step in reversed(e.series.steps):
        if step.seconds is not None and step.step <= begun:  # else a later line's mean is about it, too
            seconds += step.seconds * step.interval
            begun = step.step - step.interval
    if e.wall_s is not None and seconds > e.wall_s + _WALL_CLOCK_SLACK_S:
        yield Problem(
            kind="implausible",
            message=f"the steps add up to {seconds:.4g} s, but the run took {e.wall_s:.4g} s from launch to end",
        )
    if not all(duration > 0.0 for duration in durations):  # NaN is not above 0 either
        yield Problem(kind="implausible", message="a step took no time at all")


def _completed(e: Evidence) -> Iterator[Problem]:
    if e.series.completed is not None:
        return
    cut_off = e.cut_off or e.series.cut_off
    last = f" after step {e.series.steps[-1].step}" if e.series.steps else " without a single step"
    if cut_off is not None:
        if e.recipe.end != "time_limit":
            message = f"it was cut off{last} of {e.recipe.steps}, before it did all its work: {cut_off}"
            yield Problem(kind="time_limit", message=message)
        return
    why = f"; it said: {e.series.failure}" if e.series.failure else ""
    yield Problem(
        kind="no_evidence_of_completion",
        message=f"its log ends{last} and nothing proves that the run did all its work ({e.proof}){why}",
    )


def _one_run(e: Evidence) -> Iterator[Problem]:
    if e.series.restarted is not None:
        yield Problem(kind="restarted", message=e.series.restarted, log=e.series.restarted.partition(":")[0])


def _world_size(e: Evidence) -> Iterator[Problem]:
    if e.series.world_size not in (None, e.topology.world_size):
        yield Problem(
            kind="wrong_ranks",
            message=f"its log speaks of {e.series.world_size} ranks; the run was to have {e.topology.world_size} "
            f"({e.topology})",
        )


def _lines(e: Evidence) -> Iterator[Problem]:
    """A few unreadable lines are shown and judged without; where more is missing than they explain, nothing is."""
    numbers = [step.step for step in e.series.steps]
    if e.series.unread > max(1, _MOST_UNREAD * len(numbers)):
        yield from _unreadable(e)
    if not numbers:
        if not e.series.totals:
            yield Problem(kind="steps_missing", message="its log has not a single step, nor a number about the whole")
        return
    if numbers[-1] > e.recipe.steps:
        message = f"its log goes on to step {numbers[-1]}; the recipe ends at step {e.recipe.steps}"
        yield Problem(kind="wrong_work", message=message)
    gaps = [number - before for before, number in pairwise([0, *numbers])]
    # The first step may have a line of its own, so that the first two gaps tell nothing.
    usual = stats.mode(gaps[2:] or [e.series.steps[-1].interval])
    missing = sum(max(0, round(gap / usual) - 1) for gap in gaps)
    if e.recipe.end == "steps":
        missing += max(0, (e.recipe.steps - numbers[-1]) // usual)
    if missing > e.series.unread:
        yield Problem(
            kind="steps_missing",
            message=f"its log speaks of {len(numbers)} steps, every {usual} of them, up to step {numbers[-1]} of "
            f"{e.recipe.steps}; {missing} lines in between or at the end are missing",
        )


def _doubts(e: Evidence) -> Iterator[Problem]:
    for doubt in e.doubts:
        yield Problem(kind="implausible", message=doubt)


_OF_RANKS = (_unreadable, _ranks, _hosts, _hardware, _steps, _work, _finite, _falling, _clock)
_OF_A_COMMAND = (_one_run, _completed, _hardware, _world_size, _lines, _work, _finite, _falling, _clock, _doubts)


def _list(items: object, most: int = 8) -> str:
    words = [str(item) for item in items] if isinstance(items, list | tuple) else [str(items)]
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more
