"""Compares the training with the recipe: the claims of a log, and what ranks counted of model, group and tensors.

If two ranks make different claims, one of them differs from the recipe.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product

from pytest_llmbench.core.quantity import listed
from pytest_llmbench.core.record.claims import Asked, ClaimName, Span, on_off
from pytest_llmbench.core.record.records import Problem
from pytest_llmbench.core.wire.step_events import TrainingEvent
from pytest_llmbench.judging.sanity.evidence import Evidence, of_rank, problem

# A framework's log rounds large counts to six digits, and parameters in words (`331 M`) to three.
_ROUNDING = 1e-4
_ROUNDED_COUNT = 5e-3
# Least size of a parameter in bytes, in any precision.
_BYTES = 2


def check_claims(e: Evidence) -> Iterator[Problem]:
    """Refuse every claim of a log (layers, batch, layout, precision, ...) that differs from the recipe."""
    for claim in e.series.claims:
        expected = due(claim.name, e)
        if isinstance(expected, tuple):  # by pipeline stage; a stage beyond those of the recipe has to be empty
            expected = expected[claim.stage] if claim.stage < len(expected) else Span(0, 0)
        if expected is not None and not _same(claim.value, expected):
            #: problem wrong_work: a setting in the log that is not the recipe's
            yield problem(
                "wrong_work",
                f"{claim.where} says {claim.name.replace('_', ' ')} {claim.value}; recipe {e.recipe.name} says "
                f"{expected} ({e.topology}): the log is of another training than the recipe's",
                claim.log,
            )
    for words in e.compared.differ:
        yield problem(
            "wrong_work", f"{words}: the log is of another training than the recipe's", words.partition(":")[0]
        )


def due(name: ClaimName, e: Evidence) -> Asked:
    """Return what the run's engine or else the recipe asks for on this topology; None if unknown."""
    if name in e.asks:
        return e.asks[name]
    if name == "sharding" and _copies(e) == 1:
        return None  # a single copy has all of its state to itself
    return OF_RECIPES[name](e) if name in OF_RECIPES else None


def _same(value: float | str, expected: float | str | Span) -> bool:
    if isinstance(expected, Span):
        slack = _ROUNDED_COUNT if isinstance(value, float) else 0.0
        return not isinstance(value, str) and expected.low * (1 - slack) <= value <= expected.high * (1 + slack)
    if isinstance(value, int | str) or isinstance(expected, str):
        return value == expected
    return math.isclose(value, expected, rel_tol=_ROUNDING)


def _copies(e: Evidence) -> int:
    return max(1, e.topology.world_size // e.recipe.parallelism.model_parallel_size)


OF_RECIPES: Mapping[ClaimName, Callable[[Evidence], int | float | str]] = {
    "layers": lambda e: e.recipe.model.layers,
    "hidden_size": lambda e: e.recipe.model.hidden_size,
    "attention_heads": lambda e: e.recipe.model.attention_heads,
    "sequence_length": lambda e: e.recipe.sequence_length,
    "global_batch_size": lambda e: e.recipe.samples_per_step,
    "micro_batch_size": lambda e: e.recipe.micro_batch_size,
    "tensor": lambda e: e.recipe.parallelism.tensor,
    "pipeline": lambda e: e.recipe.parallelism.pipeline,
    "precision": lambda e: e.recipe.precision,
    "fp16": lambda e: on_off(e.recipe.precision == "fp16"),
    "bf16": lambda e: on_off(e.recipe.precision == "bf16"),
    "world_size": lambda e: e.topology.world_size,
    "steps": lambda e: e.recipe.steps,
    "micro_batches": lambda e: e.recipe.samples_per_step // (e.recipe.micro_batch_size * _copies(e)),
    "feed_forward_size": lambda e: e.recipe.model.feed_forward_width,
    "positions": lambda e: e.recipe.model.positions,
    "sharding": lambda e: e.recipe.parallelism.sharding,
    "sequence_parallel": lambda e: on_off(e.recipe.parallelism.sequence),
    "activation_checkpointing": lambda e: e.recipe.parallelism.activation_checkpointing,
    "frozen_parameters": lambda _: 0,
    "dropout": lambda e: f"{e.recipe.model.dropout:g}",
    "initial_weights": lambda _: "random",
}


def check_counts(e: Evidence) -> Iterator[Problem]:
    """Require the counts of every rank, and compare those of each copy of the model with the recipe."""
    if e.expected is None or e.expected.parameters is None:
        return
    silent = [info.rank for info in e.series.ranks if info.training is None]
    if silent:
        yield problem(
            "wrong_work",
            f"the step logs of ranks {listed(silent)} lack the count of the training, so it is unknown whether it was "
            "this recipe: the log is incomplete, or was changed",
        )
    ranks = [info.training for info in e.series.ranks if info.training is not None]
    if ranks and not silent:
        yield from _layout(e, ranks)
        yield from _models(e, ranks)
        # The first and the last stage see tokens.
        ends = [(i.rank, t) for i in e.series.ranks if (t := i.training) and t.pipeline_rank in (0, t.pipeline - 1)]
        odd = [rank for rank, counts in ends if None in (counts.sequence_length, counts.micro_batch_size)]
        if odd:
            yield _wrong(f"ranks {listed(odd)} were fed nothing, or micro batches of more than one shape")
        yield from _too_small(e)
        yield from _steps_and_data(e)


def _wrong(what: str) -> Problem:
    #: problem wrong_work: another model, or other tensors, than the recipe's, as our own ranks counted them
    return problem("wrong_work", f"{what}: this log is of another training than the recipe's")


def _layout(e: Evidence, ranks: Sequence[TrainingEvent]) -> Iterator[Problem]:
    """Require one rank on each place of each copy."""
    layout = e.recipe.parallelism
    copies = e.topology.world_size // layout.model_parallel_size
    places = sorted(product(range(layout.tensor), range(layout.pipeline), range(copies)))
    there = sorted((rank.tensor_rank, rank.pipeline_rank, rank.copy_rank) for rank in ranks)
    if there != places:
        yield _wrong(
            f"the ranks have the places (tensor, pipeline, copy) {listed(there)}; the recipe has each once of tensor "
            f"{layout.tensor} × pipeline {layout.pipeline} × {copies} copies"
        )


def _models(e: Evidence, ranks: Sequence[TrainingEvent]) -> Iterator[Problem]:
    """Compare layers and parameters of every copy with the recipe's model."""
    layers: dict[tuple[int, int], int] = defaultdict(int)
    parameters: dict[int, int] = defaultdict(int)
    for rank in ranks:
        layers[rank.copy_rank, rank.tensor_rank] += rank.layers
        parameters[rank.copy_rank] += rank.parameters
    model, recipe = e.expected, e.recipe.name
    for (copy, _), number in sorted(layers.items()):
        if model is not None and model.layers not in (None, number):
            yield _wrong(f"copy {copy} of the model has {number} layers; recipe {recipe} says {model.layers}")
    for copy, number in sorted(parameters.items()):
        if model is not None and number != model.parameters:
            words = f"{number} parameters; that of recipe {recipe} has {model.parameters}"
            yield _wrong(f"copy {copy} of the model has {words}")


def _too_small(e: Evidence) -> Iterator[Problem]:
    """Require a peak memory of at least the parameters of a rank, or of its share of them if they are sharded."""
    shared = e.topology.world_size if e.recipe.parallelism.sharding in {"gradients", "full"} else 1
    for info in e.series.ranks:
        peak, held = info.steps.peak_memory_bytes if info.steps else None, info.training
        least = _BYTES * held.parameters / shared if held else 0.0
        if held is not None and peak is not None and peak < least:
            words = f" used {peak:,} bytes of memory at most; the {held.parameters:,} parameters that it counted take "
            #: problem wrong_work: less memory in use than the counted parameters take
            yield of_rank("wrong_work", info, f"{words}{least:,.0f} at least")


def _steps_and_data(e: Evidence) -> Iterator[Problem]:
    """Require a step of the optimizer for each step of a rank, and of drawn tokens new ones for each micro batch."""
    drawn = e.recipe.data.kind == "synthetic"
    fed: dict[str, tuple[int, int]] = {}
    for info in e.series.ranks:
        did = info.training
        if did is None:
            continue
        logged = info.steps.count if info.steps else 0
        if did.optimizer_steps not in (None, logged):
            #: problem wrong_work: more or fewer optimizer steps than logged
            yield of_rank("wrong_work", info, f" made {did.optimizer_steps} optimizer steps, and its log has {logged}")
        if drawn and did.repeated:
            #: problem wrong_work: repeated micro batches
            yield of_rank("wrong_work", info, f" was fed {did.repeated} micro batches that it had been fed before")
        if drawn and did.batches is not None:
            rank, copy = fed.setdefault(did.batches, (info.rank, did.copy_rank))
            if copy != did.copy_rank:
                yield of_rank("wrong_work", info, f" was fed the micro batches of rank {rank}, of another copy")
