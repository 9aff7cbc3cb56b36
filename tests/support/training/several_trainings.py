"""What ranks run to train several recipes of one engine, one after the other: importing it takes longer than they do.

    entry    several_trainings:train_all
    config   {"engine": NAME, "recipes": {NAME OF THE TRAINING: {"ranks": N, "recipe": RECIPE}}}

The first N ranks train a recipe, by the engine's own entry, with logs in a folder of its own below the run's. Rank 0
also writes `initial.pt`: the weights that all of them start from, by the names of `plain_decoder`, drawn by the
engine's own initialiser.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from pytest_llmbench.core.recipe.recipes import Parallelism, Recipe
from pytest_llmbench.core.schema import validate
from pytest_llmbench.workloads.node import machine
from pytest_llmbench.workloads.node.machine import device_name, gpu_index, versions
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.rendezvous import process_group
from pytest_llmbench.workloads.rank.steplog import StepLog
from pytest_llmbench.workloads.training import matmul

_SEED = 1  # of initial values, as in the loop of each engine
_MEETING_S = 300.0

Weights = dict[str, torch.Tensor]
Train = Callable[[RankContext, StepLog], None]
Initial = Callable[[Recipe, torch.device], Weights]


def train_all(context: RankContext, _: StepLog) -> None:
    """Train every recipe of the config."""
    # It would take time of each training, and is not what is asked here.
    vars(matmul)["measure"] = lambda *_: 1e9
    # Threads of such small trainings mostly wait for one another, even more while other tests run.
    vars(machine)["cpu_threads"] = lambda _: 1
    with _ENGINES[context.config["engine"]](context) as (train, initial):
        if context.rank == 0:
            training = next(iter(context.config["recipes"].values()))
            device = torch.device("cuda", gpu_index(0)) if context.device == "cuda" else torch.device("cpu")
            weights = initial(validate(Recipe, training["recipe"], "recipe"), device)
            torch.save(
                {name: value.detach().float().cpu() for name, value in weights.items()}, context.folder / "initial.pt"
            )
        for name, training in context.config["recipes"].items():
            if context.rank < training["ranks"]:
                _train(context, name, training, train)


def _train(context: RankContext, name: str, training: Mapping[str, Any], train: Train) -> None:
    ranks, folder = training["ranks"], context.folder / name
    own = replace(context, folder=folder, config=training["recipe"], world_size=ranks, ranks_per_node=ranks)
    with StepLog(own) as log:
        log.start(device_name(own), versions())
        train(own, log)
        log.end()


@contextmanager
def _torch(_: RankContext) -> Iterator[tuple[Train, Initial]]:
    from pytest_llmbench.engines.torch.ranks.run import train  # noqa: PLC0415 - another engine has no use for it

    yield train, of_decoder


@contextmanager
def _megatron_core(context: RankContext) -> Iterator[tuple[Train, Initial]]:
    from pytest_llmbench.engines.megatron_core.ranks.run import train  # noqa: PLC0415 - optional

    def train_and_forget(own: RankContext, log: StepLog) -> None:
        train(own, log)
        from megatron.core import parallel_state  # noqa: PLC0415 - not before `train` has settled what it finds

        parallel_state.destroy_model_parallel()

    yield train_and_forget, of_decoder


@contextmanager
def _deepspeed(context: RankContext) -> Iterator[tuple[Train, Initial]]:
    from pytest_llmbench.engines.deepspeed.ranks import run as deepspeed_run  # noqa: PLC0415 - optional

    # DeepSpeed remembers the first group that it finds, so all trainings share one.
    with process_group(context, _MEETING_S) as device:
        vars(deepspeed_run)["process_group"] = lambda *_: nullcontext(device)
        deepspeed_run.join(device)
        yield deepspeed_run.train, of_opt


_ENGINES = {"torch": _torch, "megatron_core": _megatron_core, "deepspeed": _deepspeed}


def of_decoder(recipe: Recipe, device: torch.device) -> Weights:
    """Of engines torch and megatron_core, which start alike."""
    from pytest_llmbench.engines.torch.ranks.decoder import Decoder, initialise  # noqa: PLC0415 - deepspeed has no use for it

    with device:
        model = Decoder(recipe.model, recipe.sequence_length, activation_checkpointing=False)
    initialise(model, _SEED)
    weights = dict(model.named_parameters())
    # Rows that pad the vocabulary belong to no token.
    return {**weights, "tokens.weight": weights["tokens.weight"][: recipe.model.vocab_size]}


def of_opt(recipe: Recipe, device: torch.device) -> Weights:
    """Of engine deepspeed, under our names."""
    from pytest_llmbench.engines.deepspeed.options import DeepSpeedOptions  # noqa: PLC0415 - as above
    from pytest_llmbench.engines.deepspeed.ranks.zero import Setup, build  # noqa: PLC0415

    whole = recipe.model_copy(update={"parallelism": Parallelism(), "precision": "fp32"})
    options = validate(DeepSpeedOptions, recipe.options, "options")
    setup = Setup(recipe=whole, options=options, device=device, rank=0, rank_batch=recipe.micro_batch_size)
    theirs: Weights = dict(build(setup).named_parameters())
    weights = {
        "tokens.weight": theirs["model.decoder.embed_tokens.weight"],
        "positions.weight": theirs["model.decoder.embed_positions.weight"][2:],  # the first two are unused
        "head.norm.weight": theirs["model.decoder.final_layer_norm.weight"],
        "head.norm.bias": theirs["model.decoder.final_layer_norm.bias"],
    }
    for layer in range(recipe.model.layers):
        for kind in ("weight", "bias"):
            block = f"model.decoder.layers.{layer}"
            weights |= {
                f"blocks.{layer}.{ours}.{kind}": theirs[f"{block}.{name}.{kind}"] for name, ours in _OPT.items()
            }
            heads = [theirs[f"{block}.self_attn.{part}_proj.{kind}"] for part in "qkv"]
            weights[f"blocks.{layer}.qkv.{kind}"] = torch.cat(heads)
    return weights


_OPT = {
    "self_attn_layer_norm": "attention_norm", "self_attn.out_proj": "attention_out", "final_layer_norm": "mlp_norm",
    "fc1": "mlp_in", "fc2": "mlp_out",
}  # fmt: skip
