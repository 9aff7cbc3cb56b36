"""How fast a recipe would be on many nodes, on paper, from a measured slice of it and measured or published links.

    python -m pytest_llmbench.project nlp175b --system ND96isr_H200_v5 --slice RECORD --nodes 8 16 24

docs/projection.md has what it computes. Exits with 1 where no number of nodes has an answer, with 2 for bad input.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from pytest_llmbench.cluster.recipes import RECIPES
from pytest_llmbench.cluster.system import SYSTEMS, System, load_system
from pytest_llmbench.core.errors import ConfigError, LLMBenchError, unknown
from pytest_llmbench.core.files import write_text
from pytest_llmbench.core.plain import read_json
from pytest_llmbench.core.quantity import Quantity
from pytest_llmbench.core.recipe.recipes import Recipe, load_recipes
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.engines.base import get_engine, statistics_of
from pytest_llmbench.projection import published
from pytest_llmbench.projection.answer import check_slice, inputs, rests_on, row
from pytest_llmbench.projection.inputs import layer_cost, read_curves, read_slice
from pytest_llmbench.projection.links import TrainingLinks
from pytest_llmbench.projection.model import Band
from pytest_llmbench.projection.report import ProjectionAnswer, document, table
from pytest_llmbench.projection.slices import Hardware


def main(arguments: Sequence[str] | None = None, prog: str = "python -m pytest_llmbench.project") -> int:
    """Answer, print, and say how it ended."""
    options = _parser(prog).parse_args(arguments)
    try:
        answer = answer_of(options)
        if options.json is not None:
            write_text(options.json, json.dumps(document(answer), indent=1) + "\n")
    except (LLMBenchError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write(table(answer))
    return 0 if any(each.projection for each in answer.rows) else 1


def answer_of(options: argparse.Namespace) -> ProjectionAnswer:
    """Read what is given, and project every layout that is asked for.

    Raises:
        ConfigError: an input is wrong or missing; says which.
    """
    recipe = _recipe(options.recipe, [*RECIPES.usable().values(), *options.recipes])
    if options.global_batch is not None:
        given = {"global_batch_size": options.global_batch, "gradient_accumulation_steps": None}
        recipe = recipe.model_copy(update=given)
    system = load_system(options.system, SYSTEMS.usable().values())
    gpu, per_node = system.gpu, system.gpus_per_node
    if gpu is None or not per_node:
        raise ConfigError(f"unknown: the GPUs of system {system.name} and how many a node has; add them to its file")
    slices = [read_slice(_json(path), str(path)) for path in options.slice]
    for path, each in zip(options.slice, slices, strict=True):
        check_slice(each, recipe, gpu.model, str(path))
    hardware = _hardware(options, system, gpu.model)
    cost = layer_cost(slices, hardware)
    tried = product(options.nodes, options.pipeline or [None], options.chunks or [None])
    rows = []
    for nodes, pipeline, chunks in tried:
        shape = Topology(nodes=nodes, gpus_per_node=per_node)
        rows.append(row(recipe, shape, gpu.memory_gib, cost, hardware, pipeline=pipeline, chunks=chunks))
    return ProjectionAnswer(
        title=f"{recipe.name} on {system.name}, {per_node} × {gpu.model} a node",
        rows=rows,
        at_most_s=_bound(options.at_most, recipe),
        memory_gib=gpu.memory_gib,
        assumptions=tuple(rests_on(slices, cost, rows, hardware)),
        inputs=inputs(slices, cost, hardware),
    )


def _hardware(options: argparse.Namespace, system: System, gpu: str) -> Hardware:
    memory = published.memory_gb_s(gpu)
    if options.memory_bandwidth is not None:
        memory = Band.exactly(options.memory_bandwidth)
    if memory is None:
        raise ConfigError(
            f"unknown: the memory bandwidth of {gpu}; give --memory-bandwidth, such as '4.8 TB/s'; known:"
            f" {', '.join(published.MEMORY_GB_S)}"
        )
    line, node = options.network or published.NETWORK_GBIT_S.get(system.name), options.node_bandwidth
    links = TrainingLinks(
        curves=[curve for path in options.collectives for curve in read_curves(_json(path), str(path))],
        node_gb_s=None if node is None else Band.exactly(node),
        network_gb_s=None if line is None else published.network_gb_s(line),
        tensor_exposed=published.TENSOR_EXPOSED,
        hidden=published.HIDDEN,
        sends_exposed=published.SENDS_EXPOSED,
    )
    return Hardware(links=links, memory_gb_s=memory)


def _recipe(name: str, folders: Sequence[Path]) -> Recipe:
    recipes = load_recipes(folders)
    if name not in recipes:
        raise ConfigError(unknown("recipe", name, recipes))
    return recipes[name]


def _bound(given: float | None, recipe: Recipe) -> float | None:
    """The given goal, or the recipe's own bound on the time for 20 million tokens, whatever GPUs it is for."""
    rules = statistics_of(get_engine(recipe.engine))
    times = {name for name, rule in rules.items() if rule.speed == "seconds_for_20m_tokens"}
    asked = (reference.at_most for reference in recipe.references if reference.statistic in times)
    own = [bound.base for bound in asked if bound is not None]
    return given if given is not None else min(own, default=None)


def _json(path: Path) -> Mapping[str, Any]:
    try:
        found = read_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: expected an object, found {type(found).__name__}")
    return found


def _in(unit: str) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = Quantity(text).to(unit).value
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        if value <= 0.0:
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        return value

    return parse


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number >= 1")
    return int(text)


def _parser(prog: str) -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog=prog, description=__doc__, formatter_class=raw)
    several: dict[str, Any] = {"nargs": "+", "default": []}
    files: dict[str, Any] = {**several, "type": Path, "metavar": "FILE"}
    add = parser.add_argument
    add("recipe", help="name of a recipe: its model, batch and parallel layout")
    add("--system", required=True, help="name of a system, or its YAML file: GPUs, their memory, how many a node has")
    add("--slice", required=True, **files, help="run record of a slice, or one written by hand; two are narrower")
    add("--nodes", required=True, **several, type=_count, metavar="N", help="numbers of nodes to answer for")
    add("--collectives", **files, help="health record of a collectives check, or of benchmarks/gpu/collectives.py")
    add("--network", type=_in("Gb/s"), help="line rate of the network for each GPU, such as '400 Gb/s'")
    add("--node-bandwidth", type=_in("GB/s"), help="busbw between the GPUs of a node, where no curve has it")
    add("--memory-bandwidth", type=_in("GB/s"), help="of one GPU; by default its data sheet's")
    add("--pipeline", **several, type=_count, metavar="P", help="stages to try instead of the recipe's")
    add("--chunks", **several, type=_count, metavar="V", help="chunks of layers of a stage to try")
    add("--global-batch", type=_count, metavar="B", help="sequences per step on any number of nodes")
    add("--at-most", type=_in("s"), help="bound on the time for 20 million tokens; by default the recipe's")
    add("--recipes", **several, type=Path, metavar="DIR", help="folders of recipes in addition to the installed ones")
    add("--json", type=Path, metavar="FILE", help="write everything, every term included, as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
