"""Inputs of a projection: measured slices and collectives, from records or written by hand."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt, model_validator

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.recipes import ModelShape, Precision
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.curves import Curve
from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.core.schema import Strict, validate
from pytest_llmbench.judging.statistics import judged_steps
from pytest_llmbench.projection.layout import Layout, layout_of
from pytest_llmbench.projection.model import Band
from pytest_llmbench.projection.slices import Hardware, LayerCost, one_slice, two_slices

# Of one run nothing says how another would differ; two runs on one machine agreed within this (docs/measurements).
SPREAD = 0.014
_Finite = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Slice(Strict):
    """A measured slice, written by hand where there is no run record of it.

    Attributes:
        name: its name in reports.
        source: origin, date, tools and assumptions of the measurement.
        gpu: the GPU model, as system files name it.
        gpus, gpus_per_node: how many it ran on, and how many a node has.
        tensor: ranks that shared a layer; the others were copies of the model.
        step_s: one optimizer step, s; or `tflops_per_gpu`: model FLOPs by the second and GPU, TFLOP/s.
        spread: allowed difference of another run, as a share of the step.
    """

    name: str
    source: str
    gpu: str
    gpus: PositiveInt
    gpus_per_node: PositiveInt
    model: ModelShape
    sequence_length: PositiveInt
    micro_batch_size: PositiveInt
    global_batch_size: PositiveInt
    tensor: PositiveInt = 1
    recomputation: Literal["none", "selective", "full"] = "none"
    precision: Precision = "bf16"
    step_s: _Finite | None = None
    tflops_per_gpu: _Finite | None = None
    spread: Annotated[float, Field(ge=0, lt=1)] = SPREAD

    @model_validator(mode="after")
    def _one_of_two(self) -> Slice:
        if (self.step_s is None) == (self.tflops_per_gpu is None):
            raise ValueError("give step_s or tflops_per_gpu, one of them")
        return self


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredSlice:
    """One slice as it was measured.

    Attributes:
        steps_s: duration of a step, in each of its runs, s.
        spread: allowed difference of another run, as a share.
    """

    name: str
    gpu: str
    layout: Layout
    steps_s: tuple[float, ...]
    spread: float

    @property
    def step_s(self) -> Band:
        """The median of the runs; the ends are those of the runs, or what one run leaves open."""
        likely = statistics.median(self.steps_s)
        least, most = min(*self.steps_s, likely * (1.0 - self.spread)), max(*self.steps_s, likely * (1.0 + self.spread))
        return Band(best=least, likely=likely, worst=most)


def read_slice(document: Mapping[str, Any], where: str) -> MeasuredSlice:
    """Read a run record, or a `Slice` written by hand.

    Raises:
        ConfigError: it is neither, could not be judged, or has no step times on GPUs.
    """
    if "recipe" in document:
        return _of_record(validate(RunRecord, document, where), where)
    told = validate(Slice, document, where)
    copies, left = divmod(told.gpus, told.tensor)
    micro_batches, rest = divmod(told.global_batch_size, max(1, copies) * told.micro_batch_size)
    if left or rest:
        raise ConfigError(f"{where}: {told.gpus} GPUs or the batch of {told.global_batch_size} do not divide evenly")
    layout = Layout(
        model=told.model, sequence_length=told.sequence_length, micro_batch=told.micro_batch_size,
        micro_batches=micro_batches, tensor=told.tensor, data=copies, gpus_per_node=told.gpus_per_node,
        recomputation=told.recomputation, precision=told.precision,
    )  # fmt: skip
    step_s = told.step_s or layout.flops_per_step / (1e12 * (told.tflops_per_gpu or 0.0) * layout.gpus)
    return MeasuredSlice(name=told.name, gpu=told.gpu, layout=layout, steps_s=(step_s,), spread=told.spread)


def _of_record(record: RunRecord, where: str) -> MeasuredSlice:
    name = record.recipe.name
    if record.problem is not None:
        raise ConfigError(f"{where}: run {name} could not be judged ({record.problem.kind}): its times are not usable")
    if not record.gpus or record.device is None:
        raise ConfigError(f"{where}: run {name} used no GPU: a slice is measured on those that the training would use")
    seconds = [step.seconds for step in judged_steps(record.recipe, record.steps)]
    known = [each for each in seconds if each is not None and 0.0 < each < math.inf]
    if not known or len(known) < len(seconds):
        raise ConfigError(f"{where}: run {name} has no time of every judged step")
    topology = Topology(nodes=record.nodes, gpus_per_node=record.gpus // record.nodes)
    layout = layout_of(record.recipe.on(topology), topology)
    usual = statistics.median(known)
    return MeasuredSlice(name=name, gpu=record.device, layout=layout, steps_s=(usual,), spread=SPREAD)


def layer_cost(slices: Sequence[MeasuredSlice], hardware: Hardware) -> LayerCost:
    """Cost of a layer by these slices: one, or two of different depth; runs of the same layout are repeats.

    Raises:
        ConfigError: there are none, or more than two layouts, or they do not fit together.
    """
    by_layout: dict[Layout, MeasuredSlice] = {}
    for each in slices:
        before = by_layout.get(each.layout)
        steps = (*(before.steps_s if before else ()), *each.steps_s)
        spread = 0.0 if before else each.spread  # several runs have a spread of their own
        by_layout[each.layout] = replace(each, steps_s=steps, spread=spread)
    found = sorted(by_layout.values(), key=lambda each: each.layout.model.layers)
    if len(found) == 1:
        return one_slice(found[0].layout, found[0].step_s, hardware)
    if len(found) == 2:
        shallow, deep = found
        return two_slices(shallow.layout, deep.layout, (shallow.step_s, deep.step_s), hardware)
    raise ConfigError(f"{len(found)} slices of different layouts: give one, or two that differ in their layers alone")


def read_curves(document: Mapping[str, Any], where: str) -> tuple[Curve, ...]:
    """The curves of a health record, of a record of benchmarks/gpu/collectives.py, of one curve, or of a list `curves`.

    Raises:
        ConfigError: it is not a record of one, or a curve is incomplete or has wrong values.
    """
    curves = tuple(validate(Curve, plain, where) for plain in _plain_curves(document, where))
    for curve in curves:
        if not curve.complete or curve.wrong:
            raise ConfigError(f"{where}: {curve.collective}: incomplete, or with wrong values: not usable")
    return curves


def _plain_curves(document: Mapping[str, Any], where: str) -> Iterable[Mapping[str, Any]]:
    if "points" in document:
        return [document]
    if "curves" in document:
        return list(document["curves"])
    if "ours" in document or "theirs" in document:
        by_name = [*document.get("ours", {}).values(), *document.get("theirs", {}).values()]
        return [curve for curves in by_name for curve in curves]
    if "report" in document:
        health = validate(HealthRecord, document, where)
        if health.report.problem is not None:
            raise ConfigError(f"{where}: {health.check} could not be judged: {health.report.problem}")
        if "curve" in health.report.evidence:
            return [health.report.evidence["curve"]]
    raise ConfigError(
        f"{where}: no curve in it; legal: the health record of a collectives check, a record of"
        " benchmarks/gpu/collectives.py, a curve, or an object with a list of `curves`"
    )
