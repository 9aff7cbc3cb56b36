"""Losses that GPUs logged, of a model at its true shape, beside a plain fp32 training of it on this machine's CPU.

    python benchmarks/gpu/losses/true_shape.py RECORD.json... --row opt125m --gpus 1 --steps 3 --record true_shape.json

The records are of `engines.py`; this needs no GPU. It draws the values that the GPUs started from, trains with
`tests/support/training/plain_decoder.py` for the first steps on the same tokens, one sequence at a time; it prints
the largest relative difference of a launch, of loss and gradient norm, after every step. A step of `opt125m` takes
two cores half an hour. Exit status: 0, or 2 when the records have no such launch.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

sys.path.insert(0, str(Path(__file__).parents[3]))  # run as a script, this file is in no package

from benchmarks.gpu.losses.cuda_normal import normal
from benchmarks.gpu.training.records import Launch, read_record
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.schema import validate
from tests.support.training.plain_decoder import Point, Weights, train
from tests.support.training.same_loss import batches, difference, rules
from tests.support.training.several_trainings import of_decoder, of_opt

_FIELDS = ("loss", "norm")


def main() -> int:
    """Train, and compare."""
    options = _options()
    try:
        launches, recipe, drawn_by_gpu = _chosen(options)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    expected = list[Point]()
    for point in islice(_trained(recipe, options, drawn_by_gpu=drawn_by_gpu), options.steps):
        expected.append(point)
        print(f"step {len(expected)}: loss {expected[-1].loss:.6f}, norm {expected[-1].norm:.5f}", flush=True)
        rows = [_compared(launch, expected) for launch in launches]
        print(*map(_told, rows), sep="\n", flush=True)
        told = {
            "expected": [point._asdict() for point in expected],
            "launches": rows,
            "recipe": recipe.model_dump(mode="json"),
        }
        options.record.write_text(json.dumps(told, indent=1), encoding="utf-8")
    return 0


def _chosen(options: argparse.Namespace) -> tuple[list[Launch], Recipe, bool]:
    """The good launches of a row on so many GPUs, what the first of them trained, and whether a GPU drew its values."""
    found = [
        (launch, record)
        for record in map(read_record, options.records)
        for launch in record.launches
        if (launch.row, launch.gpus) == (options.row, options.gpus) and len(launch.losses) >= options.steps
    ]
    if not found:
        raise ConfigError(
            f"no launch of {options.row} on {options.gpus} GPUs has {options.steps} steps in these records"
        )
    first, record = found[0]
    recipe = validate(Recipe, record.recipes[" ".join(map(str, first.cell))], options.row)
    return [launch for launch, _ in found], recipe, "gpu_name" in record.machine


def _trained(recipe: Recipe, options: argparse.Namespace, *, drawn_by_gpu: bool) -> Iterator[Point]:
    def drawn(tensor: torch.Tensor, mean: float, std: float, *, generator: torch.Generator | None) -> torch.Tensor:
        if generator is None:  # what a layer has before it is initialised
            return tensor
        values = torch.from_numpy(normal(tensor.numel(), generator.initial_seed(), options.multiprocessors))
        return tensor.copy_((values * std + mean).view(tensor.shape))

    torch.set_num_threads(options.threads)
    initial = of_opt if recipe.engine == "deepspeed" else of_decoder
    with patch.object(torch.Tensor, "normal_", drawn) if drawn_by_gpu else nullcontext():
        weights: Weights = initial(recipe, torch.device("cpu"))
    return train(weights, batches(recipe), rules(recipe), at_once=1)


def _compared(launch: Launch, expected: list[Point]) -> dict[str, Any]:
    points = [Point(*both) for both in zip(launch.losses, launch.grad_norms, strict=True)]
    found = difference(points[: len(expected)], expected)
    return {"variant": launch.variant, "gpus": launch.gpus, "turn": launch.turn, **found._asdict()}


def _told(row: dict[str, Any]) -> str:
    differences = "".join(f"{row[field]:10.1e}" for field in _FIELDS)
    return f"{row['variant']:20}{row['gpus']:>2} GPUs  turn {row['turn']}{differences}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    parser.add_argument("records", type=Path, nargs="+", metavar="RECORD")
    parser.add_argument("--row", required=True)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--multiprocessors", type=int, default=132, help="of the GPU; those of H100 SXM and H200: 132")
    parser.add_argument("--record", type=Path, default=Path("true_shape.json"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
