"""Checks that losses and gradients come from a training, and that each step is genuine."""

import math
import statistics as stats
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

from pytest_llmbench.core.record.records import Problem
from pytest_llmbench.core.record.series import RankInfo, Step
from pytest_llmbench.core.repeats import repeated
from pytest_llmbench.judging.sanity.evidence import Evidence, of_rank, problem

# Two steps on different data may have one loss by chance, to the last digit that is kept.
_STILL_STEPS = 3
# Lines of few digits may have one loss this many times in a row by chance.
_STILL_LINES = 10
# The names of the learning rate in Megatron-LM, and in metaseq and NeMo.
_LEARNING_RATES = frozenset({"learning_rate", "lr"})
# Copies of a model that average their gradients have the same weights to the last bit.
_SAME_WEIGHTS = 1e-5
# A loss that is averaged over all ranks is the same on each, up to rounding.
_SAME_LOSS = 1e-3
# Losses of a few noisy steps may wander; a training that ends this far above its start went wrong.
_LOSS_RISE_NAT = 0.05


def check_finite(e: Evidence) -> Iterator[Problem]:
    """Refuse a loss or a gradient norm that is NaN or infinite."""
    for step in e.series.steps:
        for name, value in (("loss", step.loss), ("grad norm", step.grad_norm)):
            if value is not None and not math.isfinite(value):
                #: problem not_finite: a loss or gradient norm is NaN or infinite
                yield problem("not_finite", f"{name} is {value} at step {step.step}")


def check_moving(e: Evidence) -> Iterator[Problem]:
    """Refuse losses or gradient norms of ranks that stay the same, and gradient norms of 0."""
    for info in e.series.ranks:
        who, own = f"rank {info.rank} on {info.host}", info.steps
        if own is not None and own.still >= _STILL_STEPS:
            yield _idle(f"{who} has the very same loss in {own.still} steps one after the other")
        if own is not None and own.flat:
            yield _idle(f"{who} has a gradient norm of 0 in {own.flat} of {own.count} steps")
        if own is not None and own.same_norm >= _STILL_STEPS:
            yield _idle(f"{who} has the very same gradient norm in {own.same_norm} steps one after the other")


def check_moving_in_log(e: Evidence) -> Iterator[Problem]:
    """Refuse constant losses, gradient norms of 0 and learning rates of 0 in a framework's log."""
    if (words := still(e.series.steps)) is not None:
        yield _idle(f"its {words}")
    norms = [step.grad_norm for step in e.series.steps if step.grad_norm is not None]
    if norms.count(0.0) > len(norms) / 2:
        yield _idle(f"its gradient norm is 0 in {norms.count(0.0)} of {len(norms)} steps")
    for name in sorted(_LEARNING_RATES & {name for step in e.series.steps for name in step.reported}):
        rates = [step.reported[name] for step in e.series.steps if name in step.reported]
        if len(rates) >= _STILL_STEPS and not any(rates):
            yield _idle(f"its learning rate is 0 in all {len(rates)} steps")


def still(steps: Sequence[Step]) -> str | None:
    """Describe a loss that stays the same to its last digit in all steps, or in most; None if it moves."""
    losses = [step.loss for step in steps if step.loss is not None]
    count, loss = max(((len(list(row)), loss) for loss, row in groupby(losses)), default=(0, 0.0))
    if count < (_STILL_STEPS if count == len(losses) else max(_STILL_LINES, len(losses) / 2)):
        return None
    where = f"all {count} steps" if count == len(losses) else f"{count} of {len(losses)} steps, one after the other"
    return f"loss is {loss:.6g} in {where}"


def _idle(reason: str) -> Problem:
    #: problem no_training: constant losses or gradient norms, or a learning rate of 0
    return problem("no_training", f"{reason}: nothing was learned, or only repeated data")


def check_possible(e: Evidence) -> Iterator[Problem]:
    """Refuse losses outside of the bounds for a training from the beginning on this data."""
    known = [step for step in e.series.steps if step.loss is not None]
    if e.expected is None or not known:
        return
    bounds, least, first = e.expected.first_loss, e.expected.least_loss, known[0].loss or 0.0
    if bounds is not None and known[0].step == 1 and not bounds[0] <= first <= bounds[1]:
        #: problem implausible: a first loss that no untrained model has, or one below the data's
        yield problem(
            "implausible",
            f"the loss of step 1 is {first:.4g}; before anything is learned it is between {bounds[0]:.4g} and "
            f"{bounds[1]:.4g}",
        )
    low = [step for step in known if least is not None and not (step.loss or 0.0) > least]
    if low:
        words = f"the loss of step {low[0].step} is {low[0].loss:.4g}"
        yield problem("implausible", f"{words}; on this data no model is at {least:.4g} or below")


def check_alike(e: Evidence) -> Iterator[Problem]:
    """Refuse ranks with gradient norms, weights or mean losses too unlike for one model."""
    if e.expected is None or not e.expected.one_model:
        return
    if e.series.unlike_norms is not None:
        yield _apart(e.series.unlike_norms)
    yield from _unlike_weights(e)
    yield from _unlike_partners(e)
    of_ranks = [(info, info.steps.quarters) for info in e.series.ranks if info.steps is not None]
    number = min((len(quarters) for _, quarters in of_ranks), default=0)
    if number and all(quarters[-1] > quarters[0] + _LOSS_RISE_NAT for _, quarters in of_ranks):
        return  # the loss of all ranks rises, which `check_falling` reports
    losses = [step.loss for step in e.series.steps if step.loss is not None]
    rises = [0.0, *(after - before for before, after in pairwise(losses))]
    for part in range(number):
        usual = stats.median(quarters[part] for _, quarters in of_ranks)
        if not e.expected.own_losses:
            allowed = _SAME_LOSS * usual
        elif e.expected.spread is None:
            return
        else:
            steps = max(1, e.steps_due // number) if e.recipe.data.kind == "synthetic" else 1
            # If the loss of all ranks jumps up, as with a learning rate that is too high at first, their own losses
            # scatter as far. Llama 3.1 8B on four GPUs: 13.7, 11.0, 13.1 and 11.9 in its third step.
            own = rises[len(rises) * part // number : len(rises) * (part + 1) // number]
            allowed = max(e.expected.spread, *own) / math.sqrt(steps)
        for info, quarters in of_ranks:
            if abs(quarters[part] - usual) > allowed:
                yield _apart(
                    f"rank {info.rank} on {info.host} has a mean loss of {quarters[part]:.4g} in part {part + 1} of "
                    f"{number} of the steps, and the ranks' median is {usual:.4g}"
                )


def _unlike_weights(e: Evidence) -> Iterator[Problem]:
    weights: dict[tuple[int, int], tuple[int, float]] = {}
    for info in e.series.ranks:
        if (part := info.training) is not None and part.weights is not None:
            rank, usual = weights.setdefault((part.tensor_rank, part.pipeline_rank), (info.rank, part.weights))
            if abs(part.weights - usual) > _SAME_WEIGHTS:
                yield _apart(f"rank {info.rank} on {info.host} ended with other weights than rank {rank}")


def _unlike_partners(e: Evidence) -> Iterator[Problem]:
    """Require the same tokens and losses of ranks that share the matrices of a copy of the model."""
    partners: dict[tuple[int, int], tuple[RankInfo, str | None, tuple[float, ...]]] = {}
    for info in e.series.ranks:
        if (part := info.training) is not None and info.steps is not None:
            place, quarters = (part.copy_rank, part.pipeline_rank), info.steps.quarters
            one, fed, usual = partners.setdefault(place, (info, part.batches, quarters))
            words = f"ranks {one.rank} and {info.rank} share the matrices of a copy of the model"
            if part.batches != fed:
                yield _apart(f"{words}, and were fed other micro batches")
            if any(abs(mean - other) > _SAME_LOSS * other for mean, other in zip(quarters, usual, strict=False)):
                yield _apart(f"{words}, and have other losses")


def _apart(reason: str) -> Problem:
    #: problem ranks_differ: our own ranks did not train one model: their gradient norms or losses differ
    return problem("ranks_differ", f"{reason}: the ranks did not train one model")


def check_falling(e: Evidence) -> Iterator[Problem]:
    """Refuse a loss that rises."""
    losses = [step.loss for step in e.series.steps if step.loss is not None]
    if not losses:
        return
    tail = losses[-max(1, len(losses) // 4) :]
    last = sum(tail) / len(tail)  # math.fsum raises where the sum is infinite
    if last > losses[0] + _LOSS_RISE_NAT:
        first = next(step.step for step in e.series.steps if step.loss is not None)
        #: problem loss_rises: the loss ended above its start
        yield problem(
            "loss_rises",
            f"the loss rose from {losses[0]:.4g} at step {first} to {last:.4g} over the last quarter: it does not "
            "train",
        )


# A loss this many times that of a model that knows nothing, and a gradient that became this many times as long: in one
# step, and in the median of the last quarter beside the first.
_DIVERGED, _BLOWN_UP, _GROWN = 2.0, 1e4, 100.0
# A line of a framework's log may be the mean of many steps.
_FEWEST_NORMS = 10


def check_divergence(e: Evidence) -> Iterator[Problem]:
    """Refuse losses far above that of an untrained model, and gradients that grow beyond measure, in any step."""
    losses = [(step.loss, step.step) for step in e.series.steps if step.loss is not None]
    most = _DIVERGED * max(math.log(e.recipe.model.vocab_size), losses[0][0] if losses else 0.0)
    if high := next((words for words in losses if words[0] > most), None):
        #: problem loss_rises: a loss twice as high as an untrained model's
        yield problem("loss_rises", f"the loss is {high[0]:.4g} at step {high[1]}, twice that of an untrained model")
    norms = [(step.grad_norm, step.step) for step in e.series.steps if step.grad_norm]
    if len(norms) < (_STILL_STEPS if e.kind == "command" else _FEWEST_NORMS):
        return
    least = math.inf
    for norm, step in norms:
        least = min(least, norm)
        if norm >= _BLOWN_UP * least:  #: problem loss_rises: the gradient grew beyond measure
            yield problem(
                "loss_rises", f"the gradient norm rose from {least:.4g} to {norm:.4g} at step {step}: it diverges"
            )
            return
    if quarter := len(norms) // 4:
        first, last = (stats.median(norm for norm, _ in part) for part in (norms[:quarter], norms[-quarter:]))
        if last >= _GROWN * first:
            yield problem(
                "loss_rises",
                f"the gradient norm rose from {first:.4g} to {last:.4g} (medians of a quarter): it diverges",
            )


# One of this many logs may have the same stretch twice by chance.
_BY_CHANCE = 1e9
_FEWEST = 5


def check_copies(e: Evidence) -> Iterator[Problem]:
    """Refuse steps of a rank that were copied from others of its own, and a highest memory so far that falls."""
    for info in e.series.ranks:
        for fault in (info.steps.copied, info.steps.less_memory) if info.steps else ():
            if fault is not None:
                #: problem implausible: copied steps
                yield of_rank("implausible", info, f": {fault}; its log was put together")


def check_copies_in_log(e: Evidence) -> Iterator[Problem]:
    """Refuse stretches of equal lines in a framework's log that are too long to be due to chance."""
    lines = [(step, step.seconds, step.loss) for step in e.series.steps]
    known = [(step, seconds, loss) for step, seconds, loss in lines if seconds is not None and loss is not None]
    of_a_line = _information([seconds for _, seconds, _ in known]) + _information([loss for _, _, loss in known])
    if not of_a_line:
        return
    length = max(_FEWEST, math.ceil(math.log(_BY_CHANCE * len(known) ** 2) / of_a_line))
    places = repeated([line[1:] for line in known], length, length // 2 + 1)
    if places is not None:
        first, again = (f"{known[at][0].step} to {known[at + length - 1][0].step}" for at in places)
        yield problem(
            "implausible",
            f"the lines of steps {again} have the very durations and losses of those of steps {first}: its log was put "
            "together",
        )


def _information(values: Sequence[float]) -> float:
    """Information of one more value, in nat: log of the usual difference of neighbours / the smallest difference."""
    apart = [abs(after - before) for before, after in pairwise(values)]
    ordered = sorted({value for value in values if math.isfinite(value)})
    least = min((after - before for before, after in pairwise(ordered)), default=0.0)
    usual = stats.median(apart) if apart else 0.0
    return math.log(max(1.0, usual / least)) if least > 0.0 and math.isfinite(usual) else 0.0
