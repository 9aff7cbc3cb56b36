"""From a recipe, its slices and the hardware to an answer for each number of nodes, with what it rests on."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.judging.references import same_gpu
from pytest_llmbench.projection.inputs import MeasuredSlice
from pytest_llmbench.projection.layout import layout_of, same_work
from pytest_llmbench.projection.links import TrainingLinks
from pytest_llmbench.projection.memory import OTHER_GIB, memory
from pytest_llmbench.projection.model import Band, project
from pytest_llmbench.projection.report import ProjectionRow
from pytest_llmbench.projection.slices import HALVING, JITTER, Hardware, LayerCost


def check_slice(measured: MeasuredSlice, recipe: Recipe, gpu: str, where: str) -> None:
    """See that a slice is of the recipe's own layers and of the system's own GPUs.

    Raises:
        ConfigError: it cannot stand for the recipe there; the message has the reason.
    """
    wide, model = measured.layout.model, recipe.model
    if (wide.hidden_size, wide.attention_heads) != (model.hidden_size, model.attention_heads):
        raise ConfigError(
            f"{where}: a slice of width {wide.hidden_size} with {wide.attention_heads} heads says nothing of"
            f" {recipe.name} ({model.hidden_size}, {model.attention_heads}): measure one at its own width"
        )
    if not same_gpu(gpu, measured.gpu):
        raise ConfigError(f"{where}: measured on {measured.gpu}, and the system has {gpu}: measure one there")
    if (measured.layout.precision == "fp32") != (recipe.precision == "fp32"):
        raise ConfigError(f"{where}: measured in {measured.layout.precision}, and {recipe.name} is {recipe.precision}")


def row(
    recipe: Recipe, topology: Topology, gib: float, cost: LayerCost, hardware: Hardware, *,
    pipeline: int | None = None, chunks: int | None = None,
) -> ProjectionRow:  # fmt: skip
    """Project the recipe on these nodes, or say why not: it does not divide, or does not fit into `gib` of a GPU.

    Raises:
        ConfigError: a piece is not known.
    """
    nodes = topology.nodes
    try:
        layout = layout_of(recipe, topology, chunks=chunks, pipeline=pipeline)
    except ConfigError as error:
        return ProjectionRow(nodes=nodes, refused=str(error))
    needed = memory(layout)
    missing = needed.missing(gib)
    if missing:
        refused = f"{layout} needs {needed.total:.1f} GiB of a GPU that has {gib:g}: {missing:.1f} GiB too much"
        return ProjectionRow(nodes=nodes, refused=refused, memory=needed)
    return ProjectionRow(nodes=nodes, memory=needed, projection=project(layout, cost.costs(layout, hardware)))


def rests_on(
    slices: Sequence[MeasuredSlice], cost: LayerCost, rows: Iterable[ProjectionRow], hardware: Hardware
) -> Iterator[str]:
    """Everything that was measured, given or assumed, in words; of a band first the middle, then the ends."""
    for each in slices:
        yield f"slice {each.name}: {each.layout.model.layers} layers, {each.layout}, step {each.step_s} s"
    shown = Band.each(lambda end: 1e3 * cost.layer_s[end])
    one = len({each.layout for each in slices}) == 1
    how = "the head takes none to twice its share by FLOPs" if one else "by the difference of two slices"
    yield f"a layer of it for one micro batch takes {shown} ms; {how}"
    layouts = [each.projection.layout for each in rows if each.projection is not None]
    if not all(same_work(cost.layout, layout) for layout in layouts):
        yield (
            f"the slice has tensor {cost.layout.tensor} and micro batches of {cost.layout.micro_batch}, not the"
            " recipe's: its communication is exchanged for the recipe's, and each halving of a matrix costs"
            f" × {HALVING}"
        )
    precisions = {cost.layout.precision, *(layout.precision for layout in layouts)}
    if len(precisions) > 1:
        yield f"{' and '.join(sorted(precisions))} are equally fast"
    links = hardware.links
    yield f"memory: {hardware.memory_gb_s} GB/s"
    yield f"measured curves of collectives: {len(links.curves)}"
    for what, band in (
        ("busbw between the GPUs of a node where no curve has it", links.node_gb_s),
        ("rate of NCCL on each GPU's share of the network, if no curve has it", links.network_gb_s),
    ):
        yield f"{what}: {'not given' if band is None else f'{band} GB/s'}"
    yield f"share of the gradients' reduction that is hidden: {links.hidden}"
    yield f"share of the sends between stages that is not: {links.sends_exposed}"
    yield f"share of the tensor-parallel communication that is not: {links.tensor_exposed}"
    yield f"a step of more GPUs waits for the slowest rank: × {JITTER}"
    yield f"{OTHER_GIB:g} GiB of each GPU for the runtime; attention keeps no scores"
    yield "left out: data loading, evaluation, checkpoints, and the reduction of the tied embedding over two stages"


def inputs(slices: Sequence[MeasuredSlice], cost: LayerCost, hardware: Hardware) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "slices": [
            {"name": each.name, "gpu": each.gpu, "layout": each.layout.plain, "step_s": asdict(each.step_s)}
            for each in slices
        ],
        "layer_s": dict(cost.layer_s),
        "head_s": dict(cost.head_s),
        "links": _links(hardware.links),
        "memory_gb_s": asdict(hardware.memory_gb_s),
        "jitter": asdict(JITTER),
        "halving": asdict(HALVING),
    }


def _links(links: TrainingLinks) -> dict[str, Any]:
    names = ("node_gb_s", "network_gb_s", "tensor_exposed", "hidden", "sends_exposed")
    plain = {name: None if (band := getattr(links, name)) is None else asdict(band) for name in names}
    return {**plain, "curves": [curve.model_dump(mode="json") for curve in links.curves]}
