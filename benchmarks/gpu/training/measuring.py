"""From the step logs of a launch to its numbers: one function for engines and alternatives alike."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path

from benchmarks.gpu.training.launch import Ended
from benchmarks.gpu.training.records import Launch
from benchmarks.gpu.training.rows import Case
from benchmarks.gpu.training.summary import LOSS_TOLERANCE_NAT, NORM_STEPS, NORM_TOLERANCE
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.record.series import StepSeries
from pytest_llmbench.core.wire.step_events import StepEvent, parse_event
from pytest_llmbench.judging.ceiling import rates_together
from pytest_llmbench.judging.flops import parameters
from pytest_llmbench.judging.sanity import Evidence, first_problem, implausible
from pytest_llmbench.judging.statistics import Measurement, judged_steps, measure

RULES: Mapping[str, str] = {
    "tokens_per_s": "tokens of the judged steps by their wall clock; the first steps of warm_up in the recipe are not "
    "judged; the summary is the median over launches",
    "tflops_per_gpu": "tokens_per_s × (6 N + 6 L s h) / GPUs: N parameters with the token embedding, which is also the "
    "output layer, without padding of the vocabulary and without positions; L layers, sequence s, hidden size h; "
    "causal attention, nothing recomputed; half the attention of PaLM's formula, which statistic tflops_per_gpu uses",
    "startup_s": "from the start of the processes to the end of step 1 of the slowest rank, compilation with it",
    "agrees": f"losses of the last step differ by at most {LOSS_TOLERANCE_NAT} nat, and gradient norms of steps 1 to "
    f"{NORM_STEPS} by at most {100 * NORM_TOLERANCE:g} %",
    "ratio": "our median by that of the fastest alternative of the same row, GPUs and record",
    "scaling": "tokens_per_s per GPU by that on one GPU in the same record",
}


def flops_per_token(recipe: Recipe) -> float:
    """FLOPs to train on one token, as `RULES` has them."""
    model, length = recipe.model, recipe.sequence_length
    positions = length * model.hidden_size if model.positions == "learned" else 0
    return 6.0 * (parameters(model, length) - positions) + 6.0 * model.layers * length * model.hidden_size


def measured(case: Case, folder: Path, ended: Ended, *, turn: int, usual: Mapping[str, str]) -> Launch:
    """Judge a launch that has ended: its rate, or why it has none.

    Args:
        case: what was to run.
        folder: where its ranks wrote.
        ended: how it came to its end.
        turn: which launch of this cell it is, from 1.
        usual: versions that need not be said again.
    """
    series = case.engine.read(folder, case.recipe)
    rates = [info.matmul_flops_per_s for info in series.ranks if info.matmul_flops_per_s is not None]
    steps = [step for step in series.steps if step.ranks == case.topology.world_size]
    peaks = [step.peak_memory_bytes for step in steps if step.peak_memory_bytes is not None]
    versions = series.ranks[0].versions if series.ranks else {}
    launch = Launch(
        row=case.row,
        variant=case.variant,
        gpus=case.gpus,
        turn=turn,
        ours=case.ours,
        seconds=ended.seconds,
        error=_problem(case, series, ended),
        startup_s=_startup_s(folder, case.topology.world_size, ended.started),
        matmul_tflops_per_gpu=statistics.fmean(rates) / 1e12 if rates else None,
        peak_memory_gib=max(peaks) / 2**30 if peaks else None,
        step_seconds=tuple(step.seconds for step in steps if step.seconds is not None),
        losses=tuple(step.loss for step in steps if step.loss is not None),
        grad_norms=tuple(step.grad_norm for step in steps if step.grad_norm is not None),
        versions={name: value for name, value in versions.items() if usual.get(name) != value},
    )
    return launch if launch.error else launch.model_copy(update=_rates(case, series))


def _rates(case: Case, series: StepSeries) -> dict[str, object]:
    counts = not case.ours or case.engine.counts_flops(case.recipe)
    rates = rates_together(series.ranks)
    whole = Measurement(
        recipe=case.recipe,
        steps=series.steps,
        judged=judged_steps(case.recipe, series.steps),
        gpus=case.topology.gpus,
        matmul_flops_per_s=max(rates, default=None),
        peak_flops_per_s=None,
        counts_flops=counts,
        telemetry=series.telemetry,
    )
    tokens, metrics = whole.tokens_per_s, measure(whole)
    problem = implausible(metrics, whole.judged) if case.topology.gpus else None
    if problem:
        return {"error": f"{problem.kind}: {problem.message}"}
    return {
        "tokens_per_s": tokens,
        "samples_per_s": whole.samples_per_s,
        "tflops_per_gpu": tokens * flops_per_token(case.recipe) / case.gpus / 1e12 if tokens and counts else None,
        "statistics": {f"{name}, {metric.unit}": metric.value for name, metric in metrics.items()},
    }


def _problem(case: Case, series: StepSeries, ended: Ended) -> str | None:
    """Why a launch cannot be judged: what a rank says comes before what is only seen of it."""
    failed = sorted((info for info in series.ranks if info.failure), key=lambda info: info.failed_at or 0.0)
    said = [f"rank {info.rank}: {info.failure}" for info in failed[:1]]
    seen = [ended.error] if ended.error else []
    evidence = Evidence(
        recipe=case.recipe,
        topology=case.topology,
        series=series,
        hosts=(),
        wall_s=ended.seconds,
        gpu=None,
    )
    problem = first_problem(evidence)
    insane = [f"{problem.kind}: {problem.message}"] if problem else []
    return "; ".join([*(said or insane), *seen]) or None


def _startup_s(folder: Path, ranks: int, started: float) -> float | None:
    """Seconds to the end of the first step of the last rank; None where one has not got there."""
    ends = [end for path in (folder / "steps").glob("rank-*.jsonl") if (end := _first_step(path)) is not None]
    return max(ends) - started if len(ends) == ranks else None


def _first_step(path: Path) -> float | None:
    """Unix time at which a rank wrote its first step."""
    for line in path.read_bytes().splitlines():
        try:
            event = parse_event(line)
        except ValueError:  # the last line of a rank that was killed
            continue
        if isinstance(event, StepEvent):
            return event.time
    return None
