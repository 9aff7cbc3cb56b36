"""What the launches of a record say together: medians, ratios, scaling, and whether all variants learned alike."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.gpu.training.records import Launch, Line, Published, Spread
from benchmarks.gpu.training.rows import Case

LOSS_TOLERANCE_NAT = 0.02
NORM_TOLERANCE = 0.05
# A wrong split of the model shows in the second gradient before it shows in any loss.
NORM_STEPS = 3
_NOT_STARTED = "not started: the time was up"


def table(cases: Sequence[Case], launches: Sequence[Launch]) -> tuple[Line, ...]:
    """One line for every cell that was asked for, in that order; one without a rate says why.

    Args:
        cases: every cell.
        launches: every launch so far.
    """
    lines = [_line(case, [each for each in launches if each.cell == _cell(case)]) for case in cases]
    scaled = [_scaled(case, line, lines) for case, line in zip(cases, lines, strict=True)]
    norms = {each.cell: each.grad_norms[:NORM_STEPS] for each in reversed(launches) if each.error is None}
    return tuple(_compared(line, scaled, norms) for line in scaled)


def spread(values: Sequence[float]) -> Spread | None:
    """Median, least and most; None of nothing."""
    if not values:
        return None
    return Spread(median=statistics.median(values), least=min(values), most=max(values), n=len(values))


def disagreement(losses: Mapping[str, float], norms: Mapping[str, Sequence[float]]) -> str | None:
    """How variants that should learn alike do not; None where they do.

    Args:
        losses: of the last step, nat, by variant.
        norms: of the gradients of the first steps, by variant.
    """
    found = []
    if max(losses.values()) - min(losses.values()) > LOSS_TOLERANCE_NAT:
        found.append("last losses " + ", ".join(f"{name} {value:.4f}" for name, value in losses.items()))
    for step, of_step in enumerate(zip(*norms.values(), strict=True), start=1):
        if max(of_step) > (1 + NORM_TOLERANCE) * min(of_step):
            told = ", ".join(f"{name} {value:.4g}" for name, value in zip(norms, of_step, strict=True))
            found.append(f"gradient norms of step {step} {told}")
    return "; ".join(found) or None


def _cell(case: Case) -> tuple[str, str, int]:
    return case.row, case.variant, case.gpus


def _line(case: Case, launches: Sequence[Launch]) -> Line:
    """What the launches of one cell say by themselves."""
    good = [each for each in launches if each.error is None]
    startups = [each.startup_s for each in launches if each.startup_s is not None and each.turn > 1]
    errors = [each.error for each in launches if each.error is not None]
    first = launches[0] if launches else None
    samples = spread([each.samples_per_s for each in good if each.samples_per_s is not None])
    return Line(
        row=case.row,
        variant=case.variant,
        gpus=case.gpus,
        ours=case.ours,
        tokens_per_s=spread([each.tokens_per_s for each in good if each.tokens_per_s is not None]),
        samples_per_s=samples,
        tflops_per_gpu=_median([each.tflops_per_gpu for each in good]),
        matmul_tflops_per_gpu=_median([each.matmul_tflops_per_gpu for each in good]),
        startup_first_s=first.startup_s if first is not None and first.turn == 1 else None,
        startup_warm_s=_median(startups),
        peak_memory_gib=max((each.peak_memory_gib for each in good if each.peak_memory_gib is not None), default=None),
        loss_first=_median([each.losses[0] for each in good]),
        loss_last=_median([each.losses[-1] for each in good]),
        published=_published(case, samples),
        error=errors[0] if errors else None if launches else _NOT_STARTED,
    )


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _published(case: Case, samples: Spread | None) -> Published | None:
    """What others have published for so many GPUs, whatever GPU this is; nobody has for the smoke shapes."""
    if case.recipe.scale == "smoke":
        return None
    for reference in case.recipe.references:
        machine, bound = reference.applies_to, reference.at_least
        if samples is not None and machine is not None and bound is not None and machine.gpus == case.gpus:
            value = bound.value
            return Published(samples_per_s=value, machine=str(machine), ratio=samples.median / value)
    return None


def _scaled(case: Case, line: Line, lines: Sequence[Line]) -> Line:
    if case.recipe.parallelism.tensor > 1 or line.gpus == 1 or line.tokens_per_s is None:
        return line
    for one in lines:
        if (one.row, one.variant, one.gpus) == (line.row, line.variant, 1) and one.tokens_per_s is not None:
            scaling = line.tokens_per_s.median / line.gpus / one.tokens_per_s.median
            return line.model_copy(update={"scaling": scaling})
    return line


def _compared(line: Line, lines: Sequence[Line], norms: Mapping[tuple[str, str, int], Sequence[float]]) -> Line:
    """Hold a line against the others of its row and number of GPUs."""
    beside = [each for each in lines if (each.row, each.gpus) == (line.row, line.gpus) and each.loss_last is not None]
    if len(beside) < 2 or line not in beside:
        return line
    told = disagreement(
        {each.variant: each.loss_last for each in beside if each.loss_last is not None},
        {each.variant: norms[each.row, each.variant, each.gpus] for each in beside},
    )
    found: dict[str, object] = {"agrees": told is None, "disagreement": told}
    rates = {each.variant: each.tokens_per_s.median for each in beside if not each.ours and each.tokens_per_s}
    if line.ours and line.tokens_per_s is not None and told is None and rates:
        best = max(rates, key=lambda name: rates[name])
        found |= {"best_alternative": best, "ratio": line.tokens_per_s.median / rates[best]}
    return line.model_copy(update=found)
