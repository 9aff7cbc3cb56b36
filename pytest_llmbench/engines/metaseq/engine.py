"""metaseq, as Azure benchmarks OPT with it: its launcher `opt-baselines --benchmark`, read by its own log."""

import statistics as stats
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.claims import Asks
from pytest_llmbench.core.record.series import Step, StepSeries
from pytest_llmbench.engines import external, overrides
from pytest_llmbench.engines.base import Command, Place, Script, options_of
from pytest_llmbench.engines.external import External, ProgramOptions
from pytest_llmbench.engines.metaseq.log import READER
from pytest_llmbench.engines.overrides import Rules, Same
from pytest_llmbench.judging import agreement
from pytest_llmbench.judging.flops import parameters_of_stages, vocabulary
from pytest_llmbench.judging.memory import Footprint, State
from pytest_llmbench.judging.statistics import Statistic, rate
from pytest_llmbench.readers.log import log_files

_FIELDS = {
    "model-parallel-size": "parallelism.tensor", "dict-size": "model.vocab_size", "decoder-layers": "model.layers",
    "decoder-embed-dim": "model.hidden_size", "decoder-attention-heads": "model.attention_heads",
    "dropout": "model.dropout", "attention-dropout": "model.dropout", "tokens-per-sample": "sequence_length",
    "batch-size": "micro_batch_size", "update-freq": "global_batch_size", "adam-betas": "optimizer.betas",
    "adam-eps": "optimizer.eps", "weight-decay": "optimizer.weight_decay", "clip-norm": "optimizer.clip_grad_norm",
    "lr": "optimizer.learning_rate", "end-learning-rate": "optimizer.learning_rate",
    "warmup-updates": "optimizer.warmup_steps", "total-num-update": "steps", "max-update": "steps",
}  # fmt: skip
_REFUSED: Mapping[str, str] = {
    "max-tokens": "makes batches of tokens, not of sequences",
    "skip-batches": "leaves batches out",
    "max-epoch": "may end before the recipe's last step",
    "restore-file": "goes on with another run",
}
# Values of refused arguments, and of others that change the work, as it prints them by default.
_USUAL: Mapping[str, Any] = {
    "max-epoch": 0, "restore-file": "checkpoint_last.pt", "finetune-from-model": None, "cpu-offload": None,
    "ewm-ratio-to-skip-batch": -1.0, "skip-gradient-update-on-clip-norm": None,
}  # fmt: skip
_HARMLESS = frozenset({
    "activation-fn", "arch", "criterion", "decoder-learned-pos", "disable-validation", "distributed-backend",
    "distribute-checkpointed-activations", "distributed-port", "empty-cache-freq", "full-megatron-init", "log-interval",
    "lr-scheduler", "megatron-init-sigma", "no-emb-dropout", "no-epoch-checkpoints", "no-reshard-after-forward",
    "no-scale-embedding", "no-wandb", "num-workers", "profile", "python", "required-batch-size-multiple", "save-dir",
    "seed", "share-decoder-input-output-embed", "task", "tensor-parallel-init-model-on-gpu", "train-subset",
    "use-sharded-state", "valid-subset",
})  # fmt: skip
_FAMILIES = ("clip-norm-type", "fp16-", "loss-scale", "min-loss-scale", "save-interval-", "tensorboard-", "wandb-")

# Layers, hidden size and attention heads that `opt-baselines` has for each `--model-size`.
_SIZES: Mapping[str, tuple[int, int, int]] = {
    "8m": (4, 128, 2), "8m_mp1": (4, 128, 2), "125m": (12, 768, 12), "350m": (24, 1024, 16),
    "760m": (24, 1536, 16), "1.3b": (24, 2048, 32), "2.7b": (32, 2560, 32), "6.7b": (32, 4096, 32),
    "13b": (40, 5120, 40), "30b": (48, 7168, 56), "66b": (64, 9216, 72), "175b": (96, 12288, 96),
}  # fmt: skip


# An update whose gradient overflows is tried again. The loss scale of fp16 grows until that happens, and each time the
# next try comes sooner: OPT-125M on H200 had 5 in 25 updates, 4 in 50 and 5 in 60.
_MOST_DISCARDED = 0.25
_LAUNCHER = "opt-baselines"
# Where the launcher sends what the ranks print when it starts them by srun; locally they print where it does.
_TRAIN_LOG = "checkpoints/*/train.log"
_TRAIN_STDERR = "checkpoints/*/train.stderr.*"


_STATISTICS: Mapping[str, Statistic] = {
    "median_wps": rate(
        "words/s",
        "median of `wps` over all `train_inner` lines but the first; a word is a token of any rank",
        lambda m: external.over_lines(m, [step.reported.get("wps") or None for step in m.steps[1:]], stats.median),
        speed="tokens_per_s",
    )
}


class MetaseqOptions(ProgramOptions):
    """Options of this engine."""

    model_size: str
    """Model size for the launcher, which derives shape, batch and model parallel size from it."""
    program: str = _LAUNCHER
    """Program to start: metaseq's launcher, or `module:metaseq.cli.train` with arguments from the recipe's own keys."""


class Metaseq(External):
    """See `base.Engine`."""

    name = "metaseq"
    proof = "the line `done training in ... seconds`"
    options = MetaseqOptions
    reader = READER
    statistics = _STATISTICS
    logs = (_TRAIN_LOG, _TRAIN_STDERR, *External.logs)

    def problems(self, recipe: Recipe, topology: Topology) -> Iterator[str]:
        yield from super().problems(recipe, topology)
        yield from overrides.precision_problem(recipe, topology, ("fp32", "bf16", "fp16"))
        yield from overrides.layout_problems(self.name, recipe, ("pipeline", "virtual_pipeline", "sequence"))
        options = options_of(recipe, MetaseqOptions)
        copies = max(1, topology.world_size // recipe.parallelism.model_parallel_size)
        if options.program != _LAUNCHER:
            yield from overrides.batch_problem(recipe, topology)
            return
        name, model = options.model_size, recipe.model
        own = (model.layers, model.hidden_size, model.attention_heads)
        if (size := _SIZES.get(name, own)) != own:
            yield (
                f"options.model_size {name} has layers {size[0]}, hidden_size {size[1]} and attention_heads {size[2]} "
                f"in opt-baselines; model says {own[0]}, {own[1]} and {own[2]}: make them agree"
            )
        if topology.ranks_per_node < 2:
            yield f"opt-baselines refuses fewer than 2 GPUs on a node ({topology})"
        if recipe.samples_per_step % copies:
            yield (
                f"a global batch of {recipe.samples_per_step} does not divide by {copies} copies of the model "
                f"({topology}): opt-baselines would round in silence to {recipe.samples_per_step // copies} on each"
            )

    def arguments(self, recipe: Recipe, topology: Topology | None = None) -> Rules:
        options = options_of(recipe, MetaseqOptions)
        own: Mapping[str, Any] = options.arguments
        # The launcher gets only the model size.
        given = {} if topology is None or options.program == _LAUNCHER else _arguments(recipe, topology)
        precision, sharded = recipe.precision, recipe.parallelism.sharding in {"gradients", "full"}
        backends = ("fully_sharded",) if sharded else ("pytorch_ddp", "legacy_ddp", "c10d", "no_c10d")
        checkpoints = recipe.parallelism.activation_checkpointing == "full"
        other_names = overrides.rules_of({
            "bf16": ("precision", precision == "bf16"),
            "fp16": ("precision", precision == "fp16"),
            "memory-efficient-fp16": ("precision", precision == "fp16", False),
            "ddp-backend": ("parallelism.sharding", *backends),
            "checkpoint-activations": ("parallelism.activation_checkpointing", checkpoints),
        })  # fmt: skip
        # Outside of the recipe's fields, so another value makes the work unknown.
        as_usual = own.get("decoder-ffn-embed-dim") == 4 * recipe.model.hidden_size
        usual = {"decoder-ffn-embed-dim"} if as_usual else set()
        same = overrides.rules_of_given(given, _FIELDS)
        same.pop("decoder-ffn-embed-dim", None)
        if "total-num-update" in same:  # of the optimizer, as with another one the work of a step is the same
            same["total-num-update"] = Same(field="optimizer.decay", allowed=(recipe.steps,))
        known = _HARMLESS | _FIELDS.keys() | usual  # where a rule is missing, we do not give the program its arguments
        return Rules(
            own=own, same={**same, **other_names}, refused=_REFUSED, harmless=known, families=_FAMILIES, usual=_USUAL
        )  # fmt: skip

    def asks(self, recipe: Recipe, topology: Topology) -> Asks:
        """Its log counts positions from 2 on; the launcher's micro batch is all of a copy's batch."""
        model, copies = recipe.model, max(1, topology.world_size // recipe.parallelism.model_parallel_size)
        options = options_of(recipe, MetaseqOptions)
        own: Mapping[str, Any] = options.arguments
        launched, wide = options.program == _LAUNCHER, own.get("decoder-ffn-embed-dim")
        parameters = parameters_of_stages(model, recipe.sequence_length + 2, recipe.parallelism)
        return {
            "feed_forward_size": wide or 4 * model.hidden_size,
            "micro_batch_size": recipe.samples_per_step // copies if launched else recipe.micro_batch_size,
            "parameters_of_rank": parameters if self.uncounted(recipe) is None else None,
            "vocab_size": vocabulary(model),
        }

    def footprint(self, recipe: Recipe, topology: Topology) -> Footprint | None:
        """Return what its launcher keeps: weights in fp16 gathered throughout, and the rest split by fairscale's FSDP.

        Megatron-LM's layers of that time write all scores of attention: fp16 before and after the softmax, and a mask.
        """
        usual = super().footprint(recipe, topology)
        if usual is None or options_of(recipe, MetaseqOptions).program != _LAUNCHER:
            return usual
        return replace(usual, usual=State(2, 16), score=5, inputs_split=True, whole_batch=True)

    def work(self, recipe: Recipe, topology: Topology, place: Place) -> Script:
        options = options_of(recipe, MetaseqOptions)
        where = f"recipe {recipe.name}: options"
        own = external.fill_arguments(options.arguments, place, where)
        if options.program == _LAUNCHER:
            command = _launcher(options, topology, place, own)
        else:
            arguments = {**_arguments(recipe, topology), "save-dir": f"{place.folder}/checkpoints", **own}
            words = external.program_words(options.program, place, where)
            command = Command(launcher="torchrun", argv=(*words, *external.flags(arguments)))
        return Script(commands=(command,), notes=options.notes)

    def output(self, folder: Path) -> Path:
        return next(iter(log_files(folder, (_TRAIN_LOG,))), super().output(folder))

    def doubts(self, recipe: Recipe, topology: Topology, series: StepSeries) -> Iterator[str]:
        due = series.totals.get("max_update")
        if due is not None and due != recipe.steps:
            yield f"its own limit is {due:g} updates; the recipe has {recipe.steps}"
        yield from external.check_training(self, recipe, topology, series)
        slack = _slack(topology)
        yield from agreement.check_product(series.steps, "wps", ("ups", "wpb"), slack)
        discarded = series.totals.get("gradient_overflows", 0.0)
        if discarded > _MOST_DISCARDED * recipe.steps:
            yield (
                f"{discarded:g} passes were discarded next to {recipe.steps} updates, as their gradients overflowed: "
                "its words per second have their time and not their words, so that the machine is faster than they show"
            )
        yield from agreement.check_product(series.steps, "wps", ("ups", recipe.tokens_per_step), slack)
        yield from agreement.check_wall(series, topology)
        yield from agreement.check_pace(series, topology)


def _launcher(options: MetaseqOptions, topology: Topology, place: Place, own: Mapping[str, Any]) -> Command:
    spread = topology.nodes > 1
    argv = [
        _LAUNCHER, "--model-size", options.model_size, "--benchmark",
        "-t", "1", "-g", str(topology.ranks_per_node), "-n", str(topology.nodes),
        # Part of the name of a folder that has over 200 characters without it.
        "-p", place.folder.name[:40],
        # It starts its ranks by srun on the nodes it is in, and waits for them, in place of a job of its own.
        "--salloc" if spread else "--local",
        "--azure", "--checkpoints-dir", f"{place.folder}/checkpoints", *external.flags(own),
    ]  # fmt: skip
    # So that the ranks of all nodes end with the first that dies.
    env = {"SLURM_KILL_BAD_EXIT": "1"} if spread else {}
    return Command(launcher="once", argv=tuple(argv), env=env)


def _arguments(recipe: Recipe, topology: Topology) -> dict[str, Any]:
    optimizer = recipe.optimizer
    copies = max(1, topology.world_size // recipe.parallelism.model_parallel_size)
    return overrides.values_of(recipe, _FIELDS, {
        "update-freq": recipe.samples_per_step // (copies * recipe.micro_batch_size),
        "adam-betas": str(tuple(optimizer.betas)),
        "end-learning-rate": optimizer.learning_rate / 10,
        "distributed-world-size": topology.world_size,
        "decoder-ffn-embed-dim": 4 * recipe.model.hidden_size,
        "optimizer": "adam",
        "log-format": "json",
    })  # fmt: skip


def _slack(topology: Topology) -> Callable[[Step], float]:
    """Return the allowed difference of two rates whose clocks are read milliseconds apart.

    On CPUs that others use as well, a rank may wait for its turn in between: 10 ms were seen.
    """
    apart_s = 0.005 if topology.gpus else 0.05

    def share(step: Step) -> float:
        ups = step.reported.get("ups")
        seconds = step.seconds or (1 / ups if ups else 0.0)
        return 0.005 + apart_s / max(seconds * step.interval, 0.005)

    return share


ENGINE = Metaseq()
