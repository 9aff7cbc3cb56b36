"""The sanity gate: a run that is not whole, finite and plausible never yields a number."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pytest_llmbench.core.recipes import Recipe
from pytest_llmbench.core.records import Metric, Problem
from pytest_llmbench.core.series import Step, StepSeries
from pytest_llmbench.core.topology import Topology
from pytest_llmbench.judging.references import same_gpu

# Clocks of two processes on two nodes, and the time between a step's end and the observer's look.
_WALL_CLOCK_SLACK_S = 5.0
# Losses of a few noisy steps may wander; a training that ends this far above its start went wrong.
_LOSS_RISE_NAT = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What the gate looks at.

    Attributes:
        hosts: the nodes the run was given.
        wall_s: time from launch to end by the observer's own clock, seconds.
        gpu: the GPU model the system file promises, None when it promises none.
    """

    recipe: Recipe
    topology: Topology
    series: StepSeries
    hosts: tuple[str, ...]
    wall_s: float
    gpu: str | None


def first_problem(evidence: Evidence) -> Problem | None:
    """Return the first reason why the run cannot be judged, the most telling ones first."""
    for check in (_unreadable, _ranks, _hosts, _hardware, _steps, _work, _finite, _falling, _clock):
        for problem in check(evidence):
            return problem
    return None


def implausible(metrics: Mapping[str, Metric]) -> Problem | None:
    """Return why a measured number cannot be true, such as more FLOP/s than the hardware has."""
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
    return None


def _unreadable(e: Evidence) -> Iterator[Problem]:
    if e.series.unreadable:
        count = len(e.series.unreadable)
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
    devices = {info.device for info in e.series.ranks}
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
        if (step.tokens, step.samples) != (e.recipe.tokens_per_step, e.recipe.global_batch_size):
            yield Problem(
                kind="wrong_work",
                message=f"step {step.step} counted {step.tokens} tokens in {step.samples} sequences; the recipe says "
                f"{e.recipe.tokens_per_step} in {e.recipe.global_batch_size}",
            )


def _finite(e: Evidence) -> Iterator[Problem]:
    for step in e.series.steps:
        for name, value in (("loss", step.loss), ("grad norm", step.grad_norm)):
            if not math.isfinite(value):
                yield Problem(kind="not_finite", message=f"{name} is {value} at step {step.step}")


def _falling(e: Evidence) -> Iterator[Problem]:
    first, last = e.series.steps[0], _last_quarter_loss(e.series.steps)
    if last > first.loss + _LOSS_RISE_NAT:
        yield Problem(
            kind="loss_rises",
            message=f"the loss rose from {first.loss:.4g} at step 1 to {last:.4g} over the last quarter: it does "
            f"not train",
        )


def _last_quarter_loss(steps: tuple[Step, ...]) -> float:
    tail = steps[-max(1, len(steps) // 4) :]
    return sum(step.loss for step in tail) / len(tail)  # math.fsum raises where the sum is infinite


def _clock(e: Evidence) -> Iterator[Problem]:
    seconds = sum(step.seconds for step in e.series.steps)
    if seconds > e.wall_s + _WALL_CLOCK_SLACK_S:
        yield Problem(
            kind="implausible",
            message=f"the steps add up to {seconds:.4g} s, but the run took {e.wall_s:.4g} s from launch to end",
        )
    if not all(step.seconds > 0.0 for step in e.series.steps):  # NaN is not above 0 either
        yield Problem(kind="implausible", message="a step took no time at all")


def _list(items: object, most: int = 8) -> str:
    words = [str(item) for item in items] if isinstance(items, list | tuple) else [str(items)]
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more
