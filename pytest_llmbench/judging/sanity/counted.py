"""Compares what ranks counted of their model, process group and tensors with the recipe."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import product

from pytest_llmbench.core.quantity import listed
from pytest_llmbench.core.record.records import Problem
from pytest_llmbench.core.wire.step_events import TrainingEvent
from pytest_llmbench.judging.sanity.evidence import Evidence, of_rank

# Least size of a parameter, in any precision.
_BYTES = 2


def counted(e: Evidence) -> Iterator[Problem]:
    """Require the counts of every rank, and compare those of each copy of the model with the recipe."""
    if e.expected is None or e.expected.parameters is None:
        return
    silent = [info.rank for info in e.series.ranks if info.training is None]
    if silent:
        yield Problem(
            kind="wrong_work",  #: problem wrong_work: less memory in use than the counted parameters take
            message=f"the step logs of ranks {listed(silent)} lack the count of the training, so it is unknown "
            f"whether it was this recipe: the log is incomplete, or was changed",
        )
    known = {info.rank: info.training for info in e.series.ranks if info.training is not None}
    if known and not silent:
        yield from _layout(e, list(known.values()))
        yield from _models(e, list(known.values()))
        yield from _unfed(known)
        yield from _too_small(e)


def _wrong(what: str) -> Problem:
    #: problem wrong_work: another model, or other tensors, than the recipe's, as our own ranks counted them
    return Problem(kind="wrong_work", message=f"{what}: this log is of another training than the recipe's")


def _layout(e: Evidence, ranks: list[TrainingEvent]) -> Iterator[Problem]:
    """Require one rank on each place of each copy."""
    layout = e.recipe.parallelism
    copies = e.topology.world_size // layout.model_parallel_size
    due = sorted(product(range(layout.tensor), range(layout.pipeline), range(copies)))
    there = sorted((rank.tensor_rank, rank.pipeline_rank, rank.copy_rank) for rank in ranks)
    if there != due:
        yield _wrong(
            f"the ranks have the places (tensor, pipeline, copy) {listed(there)}; the recipe has each once of tensor "
            f"{layout.tensor} × pipeline {layout.pipeline} × {copies} copies"
        )


def _models(e: Evidence, ranks: list[TrainingEvent]) -> Iterator[Problem]:
    """Compare layers and parameters of every copy with the recipe's model."""
    layers: dict[tuple[int, int], int] = defaultdict(int)
    parameters: dict[int, int] = defaultdict(int)
    for rank in ranks:
        layers[rank.copy_rank, rank.tensor_rank] += rank.layers
        parameters[rank.copy_rank] += rank.parameters
    due = e.expected
    for (copy, _), number in sorted(layers.items()):
        if due is not None and due.layers not in (None, number):
            yield _wrong(f"copy {copy} of the model has {number} layers; recipe {e.recipe.name} says {due.layers}")
    for copy, number in sorted(parameters.items()):
        if due is not None and number != due.parameters:
            yield _wrong(
                f"copy {copy} of the model has {number} parameters; that of recipe {e.recipe.name} has {due.parameters}"
            )


def _too_small(e: Evidence) -> Iterator[Problem]:
    """Require a peak memory of at least the parameters of a rank, or of its share of them if they are sharded."""
    shared = e.topology.world_size if e.recipe.parallelism.sharding in {"gradients", "full"} else 1
    for info in e.series.ranks:
        peak, held = info.steps.peak_memory_bytes if info.steps else None, info.training
        least = _BYTES * held.parameters / shared if held else 0.0
        if held is not None and peak is not None and peak < least:
            said = f" used {peak:,} bytes of memory at most; the {held.parameters:,} parameters that it counted take "
            yield of_rank("wrong_work", info, f"{said}{least:,.0f} at least")


def _unfed(ranks: dict[int, TrainingEvent]) -> Iterator[Problem]:
    """Require one shape of micro batches on the first and the last stage, which are the ones that see tokens."""
    ends = {rank: counts for rank, counts in ranks.items() if counts.pipeline_rank in (0, counts.pipeline - 1)}
    odd = [rank for rank, counts in ends.items() if None in (counts.sequence_length, counts.micro_batch_size)]
    if odd:
        yield _wrong(f"ranks {listed(odd)} were fed nothing, or micro batches of more than one shape")
