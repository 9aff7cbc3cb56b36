"""Forecast of a run, by recipe and system file alone: speed, time, memory, layout, and the verdicts of its tests."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from pytest_llmbench.checks.base import CheckSettings, get_check
from pytest_llmbench.cluster.runs import Declared, RunSpec
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.system import Gpu, System, doubtful_gpu, published_tflops
from pytest_llmbench.core.gpus import GPUS, may_be_gpu, same_gpu
from pytest_llmbench.core.quantity import counted, for_people
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.engines.base import asks_for_speed, get_engine, on_machine, problems_of, statistics_of
from pytest_llmbench.judging.feasibility import PLAUSIBLE, Demand, Peak, demand
from pytest_llmbench.judging.memory import FULL, GIB, HOPELESS, Memory, fitted, memory_of
from pytest_llmbench.judging.references import Machine, applied

_AT = f"at {100 * PLAUSIBLE:g} % of it"
# GPUs whose NVLink domain is a rack of nodes.
_RACKS = ("GB200", "GB300")
_MOST_NODES = 1024
# Families of checks that compare what they measure with what the hardware should reach.
_BY_PHYSICS = ("compute", "collectives", "network")


def peak_of(recipe: Recipe, settings: Settings) -> Peak | None:
    """The published peak for a recipe; None on CPUs, at scale smoke, and where peak or FLOPs are unknown."""
    gpu, topology = settings.system.gpu, settings.topology(recipe)
    if (
        gpu is None
        or topology.gpus == 0
        or recipe.scale != "full"
        or get_engine(recipe.engine).uncounted(recipe) is not None
    ):
        return None
    peak = published_tflops(gpu.model, recipe.precision, gpu)
    return None if peak is None else Peak(recipe=recipe, topology=topology, gpu=gpu.model, tflops_per_gpu=peak[1])


def demand_of(reference: Reference, recipe: Recipe, settings: Settings) -> Demand | None:
    """Demand of a reference on the GPUs; None if it is for other machines or statistics, or the peak is unknown."""
    peak, here = peak_of(recipe, settings), as_foreseen(reference, recipe, settings)
    if peak is None or here is None:
        return None
    return demand(here, statistics_of(get_engine(recipe.engine))[reference.statistic], peak)


def machine_of(settings: Settings, recipe: Recipe, topology: Topology, device: str) -> Machine:
    """The machine of a run, as its references name machines."""
    return Machine(
        system=settings.system.name, device=device, gpus=topology.gpus, nodes=topology.nodes, scale=recipe.scale
    )


def as_foreseen(reference: Reference, recipe: Recipe, settings: Settings) -> Reference | None:
    """A reference as it counts on the machine of a run, or may by the GPUs that its ranks find there; else None."""
    machine, gpu, wanted = _machine(recipe, settings), settings.system.gpu, reference.applies_to
    machines = [machine]
    if machine.gpus and wanted is not None and wanted.gpu and (gpu is None or may_be_gpu(wanted.gpu, gpu.model)):
        machines = [replace(machine, device=wanted.gpu)]
    elif gpu is not None:
        machines += [replace(machine, device=known.model) for known in GPUS if may_be_gpu(known.model, gpu.model)]
    here = (on_machine(reference, recipe, possible) for possible in machines)
    return next((found for found in here if isinstance(found, Reference)), None)


def _machine(recipe: Recipe, settings: Settings) -> Machine:
    topology, gpu = settings.topology(recipe), settings.system.gpu
    device = (gpu.model if gpu else "unknown GPUs") if topology.gpus else "cpu"
    return machine_of(settings, recipe, topology, device)


def memory(recipe: Recipe, topology: Topology, gpu: Gpu | None = None) -> Memory | None:
    """Memory of each GPU that a recipe takes on a topology; None on CPUs, at scale smoke, and where it is unknown."""
    if topology.gpus == 0 or recipe.scale != "full":
        return None
    recipe, footprint = laid_out(recipe, topology, gpu), get_engine(recipe.engine).footprint
    kept = footprint(recipe, topology)
    return None if kept is None else memory_of(recipe, topology, kept)


def laid_out(recipe: Recipe, topology: Topology, gpu: Gpu | None) -> Recipe:
    """The recipe on a topology, with what `activation_checkpointing: auto` chooses on this GPU."""
    memory = None if gpu is None else gpu.memory_gib * GIB
    return fitted(recipe.on(topology), topology, get_engine(recipe.engine).footprint, memory)


def refusals(recipe: Recipe, settings: Settings) -> Iterator[str]:
    """Yield reasons for which a run must fail on this system: its memory, and its time at the published peak."""
    gpu, topology = settings.system.gpu, settings.topology(recipe)
    needed = memory(recipe, topology, gpu) if gpu is not None else None
    if gpu is not None and needed is not None and needed.least > gpu.memory_gib * GIB:
        yield (
            f"recipe {recipe.name}: weights, gradients and optimizer alone take {needed.least / GIB:.0f} GiB of each "
            f"GPU on {topology}, and {gpu.model} has {gpu.memory_gib:g} GiB: {_cure(recipe, settings, topology)}"
        )
    elif gpu is not None and needed is not None and _is_hopeless(needed, recipe, gpu):
        yield (
            f"recipe {recipe.name}: about {needed.estimate / GIB:.0f} GiB of each GPU's {gpu.memory_gib:g} GiB are "
            f"expected to be in use on {topology}, most of them by activations: give a smaller micro_batch_size, or "
            "activation_checkpointing: full, or more parallelism"
        )
    peak, limit = peak_of(recipe, settings), settings.time_limit_min(recipe)
    whole = recipe.end == "steps" and not settings.early_verdict
    if peak is not None and whole and peak.least_minutes > limit:
        yield (
            f"recipe {recipe.name}: its {recipe.steps} steps take at least {_minutes(peak.least_minutes)} at the "
            f"published peak of {peak}, and its time limit is {limit} min: give --time "
            f"{_longer(peak.minutes(PLAUSIBLE))}, fewer steps, or more nodes"
        )


def doubts(recipe: Recipe, settings: Settings) -> Iterator[str]:
    """Yield reasons why a run may fail, or be slow, on this system."""
    gpu, topology = settings.system.gpu, settings.topology(recipe)
    needed = memory(recipe, topology, gpu) if gpu is not None else None
    if (
        gpu is not None
        and needed is not None
        and needed.least <= gpu.memory_gib * GIB < needed.estimate / FULL
        and not _is_hopeless(needed, recipe, gpu)
    ):
        yield (
            f"recipe {recipe.name}: about {needed.estimate / GIB:.0f} GiB of each GPU's {gpu.memory_gib:g} GiB are "
            f"expected to be in use, more than {100 * FULL:g} %: it may run out of memory"
        )
    peak, limit = peak_of(recipe, settings), settings.time_limit_min(recipe)
    if peak is not None and recipe.end == "steps" and peak.least_minutes <= limit < peak.minutes(PLAUSIBLE):
        yield (
            f"recipe {recipe.name}: it is expected to take {_minutes(peak.minutes(PLAUSIBLE))}, and its time limit is "
            f"{limit} min: give --time {_longer(peak.minutes(PLAUSIBLE))}, fewer steps, or more nodes"
        )
    tensor, a_node = recipe.parallelism.tensor, topology.ranks_per_node
    rack = gpu is not None and any(same_gpu(name, gpu.model) for name in _RACKS)
    if topology.gpus and topology.nodes > 1 and a_node % tensor and not rack:
        yield (
            f"recipe {recipe.name}: tensor {tensor} spreads each matrix over several nodes of {a_node} GPUs, and waits "
            "for their network in every layer: take a divisor of the GPUs of a node"
        )


def _is_hopeless(needed: Memory, recipe: Recipe, gpu: Gpu) -> bool:
    """True if a training takes several times a GPU's memory, and it is known what its engine recomputes."""
    return get_engine(recipe.engine).kind == "ranks" and needed.estimate > HOPELESS * gpu.memory_gib * GIB


def numbers(recipe: Recipe, settings: Settings) -> Iterator[str]:
    """Yield lines on the speed, the time and the memory of a run on GPUs at full scale, or why they are unknown."""
    gpu, topology = settings.system.gpu, settings.topology(recipe)
    if topology.gpus == 0 or recipe.scale != "full":
        return
    peak, needed = peak_of(recipe, settings), memory(recipe, topology, gpu)
    if peak is not None:
        yield f"feasibility: {peak.limit}"
    if peak is not None and recipe.end == "steps":
        expected = peak.minutes(PLAUSIBLE)
        yield (
            f"time: {_minutes(peak.minutes())} at the published peak; {_minutes(expected)}, or "
            f"{for_people(topology.gpus * expected / 60, 3)} GPU-hours, are expected {_AT}"
        )
    if needed is not None:
        yield (
            f"memory of each GPU: {needed.state / GIB:.1f} GiB of weights, gradients and optimizer, about "
            f"{needed.estimate / GIB:.0f} GiB with activations and buffers"
            f"{f', of {gpu.memory_gib:g} GiB' if gpu else ''}"
        )
    if recipe.parallelism.activation_checkpointing == "auto":
        chosen = laid_out(recipe, topology, gpu)
        batch = f"{counted(chosen.micro_batch_size, 'sequence')} in each micro batch"
        decided = "" if gpu else "; decided on the GPUs, by their memory"
        yield f"recomputed: {chosen.parallelism.activation_checkpointing}, {batch}{decided}"
    if unknown := [what for what, number in (("time", peak), ("memory", needed)) if number is None]:
        reason = get_engine(recipe.engine).uncounted(recipe)
        if reason is None and gpu is not None:
            no_peak = f"{gpu.model} has no peak for {recipe.precision}"
            reason = no_peak if peak is None else f"engine {recipe.engine} decides on it"
        yield f"unknown: its {' and '.join(unknown)}: {reason or f'system {settings.system.name} names no gpu'}"


def outlook(
    run: RunSpec, tests: Sequence[Declared], settings: Settings, left_out: Iterable[Reference]
) -> tuple[list[str], bool]:
    """Foresee the verdicts of a run: lines for people, and whether one may be on its speed.

    References in `left_out` have no test here, as they are for other machines.
    """
    recipe, judged, sources = run.recipe, list[str](), list[str]()
    elsewhere = {reference.name: reference for reference in left_out}
    compared, unmeasured, speed = {test.reference for test in tests}, list[str](), False
    for reference in recipe.references:
        if reference.name not in compared:
            continue
        if (here := as_foreseen(reference, recipe, settings)) is None:
            elsewhere[reference.name] = reference
        elif (reason := _why_not_measured(reference, recipe, settings)) is not None:
            unmeasured.append(f"{reference.name} ({reference.statistic}: {reason})")
        else:
            judged.append(f"{reference.name}{_condition(here, settings)}")
            asks = any(asks_for_speed(here.statistic, recipe.engine, *bound) for bound in here.bounds)
            if asks and not here.floor:
                speed = True
                sources.append(f"source of {reference.name}: {reference.source}, {reference.date}")
    own = [test.test for test in tests if test.reference is None]
    kinds = {
        "judged": judged + [f"{test}, by its own threshold" for test in own],
        f"not for this machine ({_machine(recipe, settings)})": [
            f"{reference.name} (for {reference.applies_to})" for reference in elsewhere.values()
        ],
        "not measured": unmeasured,
        "compared by no test": [other.name for other in recipe.references if other.name not in compared],
    }
    lines = [f"{kind}: {'; '.join(names)}" for kind, names in kinds.items() if names]
    return [*lines, *sources], speed or bool(own)


def outlook_of_check(name: str, settings: Settings) -> Iterator[str]:
    """Yield the bounds that will judge the numbers of a check, and those that will not, with their machines."""
    check, own, here = get_check(name), settings.system.validation.get(name, CheckSettings()), settings.system
    if own.skip is not None:
        yield f"left out: {own.skip}"
    if own.skip is not None or not check.statistics:
        return
    gpus, nodes = settings.gpus_of_a_node or 0, settings.nodes or 1
    judged, elsewhere = list[str](), list[str]()
    # A device, a node, a pair of nodes, all of them.
    places = {(1, min(1, gpus)), (1, gpus), (min(2, nodes), min(2, nodes) * gpus), (nodes, nodes * gpus)}
    if check.family == "collectives":
        places = {(nodes, nodes * gpus)}
    for reference in own.references:
        wanted = reference.applies_to
        named = wanted is not None and wanted.gpu and (here.gpu is None or may_be_gpu(wanted.gpu, here.gpu.model))
        device = str(wanted.gpu) if wanted is not None and named else here.gpu.model if here.gpu else "cpu"
        machines = [
            Machine(system=here.name, device=device, gpus=count, nodes=some, scale=settings.scale)
            for some, count in places
        ]
        if any(isinstance(applied(reference, machine), Reference) for machine in machines):
            judged.append(
                f"{reference.name} ({reference.statistic} {reference.asked}){_condition(reference, settings)}"
            )
        else:
            elsewhere.append(f"{reference.name} (for {wanted})")
    if gpus and settings.scale == "full" and check.family in _BY_PHYSICS:
        judged.append("physics, where the nodes show what their hardware is")
    kinds = {
        "judged": judged or ["by nothing: a PASS will show that it works, not how fast"],
        f"not for this machine ({counted(nodes, 'node')} × {counted(gpus, 'GPU')}, scale {settings.scale})": elsewhere,
    }
    yield from (f"{kind}: {'; '.join(names)}" for kind, names in kinds.items() if names)


def contradictions(system: System) -> Iterator[str]:
    """Yield entries of a system's file that contradict the system itself or its GPU's data sheet."""
    yield from doubtful_gpu(system.gpu) if system.gpu is not None else ()
    places = {f"references: {recipe}": references for recipe, references in system.references.items()}
    places |= {f"validation: {check}": own.references for check, own in system.validation.items()}
    for place, reference in ((place, reference) for place, references in places.items() for reference in references):
        wanted = reference.applies_to
        if wanted is None:
            continue
        own, here = system.gpu, f"system {system.name}{f' with {system.gpu.model}' if system.gpu else ''}"
        other_system = wanted.system not in (None, system.name)
        if other_system or (wanted.gpu and own is not None and not may_be_gpu(wanted.gpu, own.model)):
            never = other_system or place.startswith("validation")
            what = "and never applies" if never else "at best a floor on other GPUs"
            yield f"{place}: {reference.name} is for {wanted}, {what}: this is {here}"


def _why_not_measured(reference: Reference, recipe: Recipe, settings: Settings) -> str | None:
    engine, statistic, system = get_engine(recipe.engine), reference.statistic, settings.system
    reason, topology = None, settings.topology(recipe)
    if statistic in {"mfu", "tflops_per_gpu", "matmul_fraction"}:
        reason = engine.uncounted(recipe)
    if statistic == "matmul_fraction" and engine.kind == "command":
        reason = "a program of its own measures no matrix products"
    if statistic in {"tflops_per_gpu", "tokens_per_s_per_gpu"} and not topology.gpus:
        reason = "there are no GPUs"
    if statistic == "mfu" and system.gpu and published_tflops(system.gpu.model, recipe.precision, system.gpu) is None:
        reason = f"system {system.name} has no peak for {recipe.precision}"
    return reason


def _condition(reference: Reference, settings: Settings) -> str:
    gpu, wanted = settings.system.gpu, reference.applies_to
    other = wanted is not None and wanted.gpu is not None and (gpu is None or not same_gpu(wanted.gpu, gpu.model))
    better = other and reference.floor and gpu is not None
    words = [f"if the GPUs are {wanted.gpu}"] if wanted is not None and other and not better else []
    words += [f"a floor, set for {wanted}" if better else "a floor"] if reference.floor else []
    words += [f"expected to fail {reference.xfail}"] if reference.xfail is not None else []
    return f" ({', '.join(words)})" if words else ""


def _cure(recipe: Recipe, settings: Settings, topology: Topology) -> str:
    """Name the numbers of nodes on which a run fits and can run."""
    gpu, engine = settings.system.gpu, get_engine(recipe.engine)
    if recipe.gradient_accumulation_steps is not None:
        recipe = recipe.model_copy(update={"global_batch_size": None})  # it grows with the ranks
    for nodes in range(topology.nodes + 1, _MOST_NODES):
        larger = replace(topology, nodes=nodes)
        needed = memory(recipe, larger, settings.system.gpu)
        if gpu is None or needed is None or needed.estimate > FULL * gpu.memory_gib * GIB:
            continue
        if not any(problems_of(engine, recipe.on(larger), larger)):
            return f"it fits on {nodes} nodes (--nodes {nodes})"
    return "no number of nodes is enough: split more of it (parallelism: sharding, tensor, pipeline)"


def _minutes(minutes: float) -> str:
    return f"{for_people(minutes, 3)} min"


def _longer(minutes: float) -> int:
    """A time limit, in minutes, with room for the start."""
    return math.ceil(1.25 * minutes)
