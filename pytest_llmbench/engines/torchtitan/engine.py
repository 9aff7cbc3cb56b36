"""torchtitan: torchrun on every node, read by its own log line. The shape of the model is that of its `flavor`."""

import statistics as stats
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.shape import DENSE, MIXTURES
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.claims import Asks, SettingsCheck
from pytest_llmbench.core.record.series import Step, StepSeries
from pytest_llmbench.engines import external, overrides
from pytest_llmbench.engines.base import Command, Place, Script, options_of
from pytest_llmbench.engines.external import External, ProgramOptions
from pytest_llmbench.engines.overrides import Rules, Same
from pytest_llmbench.engines.torchtitan.log import READER
from pytest_llmbench.judging import agreement
from pytest_llmbench.judging.flops import parameters, vocabulary
from pytest_llmbench.judging.memory import Footprint
from pytest_llmbench.judging.statistics import Statistic, rate

_FIELDS = {
    "training.local_batch_size": "micro_batch_size",
    "training.global_batch_size": "global_batch_size",
    "training.seq_len": "sequence_length",
    "training.steps": "steps",
    "training.max_norm": "optimizer.clip_grad_norm",
    "training.mixed_precision_param": "precision",
    "parallelism.tensor_parallel_degree": "parallelism.tensor",
    "parallelism.pipeline_parallel_degree": "parallelism.pipeline",
    "parallelism.context_parallel_degree": "parallelism.context",
    "parallelism.expert_parallel_degree": "parallelism.expert",
    "parallelism.data_parallel_replicate_degree": "parallelism.sharding",
    "lr_scheduler.warmup_steps": "optimizer.warmup_steps",
    "lr_scheduler.decay_type": "optimizer.decay",
    "lr_scheduler.min_lr_factor": "optimizer.decay",
}
# These are of versions up to 0.2 alone.
_OLD_FIELDS = {
    "optimizer.lr": "optimizer.learning_rate",
    "optimizer.beta1": "optimizer.betas",
    "optimizer.beta2": "optimizer.betas",
    "optimizer.eps": "optimizer.eps",
    "optimizer.weight_decay": "optimizer.weight_decay",
    "activation_checkpoint.mode": "parallelism.activation_checkpointing",
    "model.converters": "precision",
}
_CONVERTERS = {"fp8": "quantize.linear.float8", "mxfp8": "quantize.linear.mx"}
_REFUSED: Mapping[str, str] = {
    "lr_scheduler.total_steps": "decays the learning rate over another number of steps",
    "checkpoint.initial_load_path": "goes on with another run",
    "optimizer.early_step_in_backward": "leaves the clipping of gradients out",
    "training.enable_cpu_offload": "trains with states in the host's memory",
    "comm.mode": "does not communicate",
}
_USUAL: Mapping[str, Any] = {
    "comm.mode": "default", "training.dtype": "float32", "training.mixed_precision_reduce": "float32",
    "optimizer.name": "AdamW", "attn_mask_type": "causal", "debug.moe_force_load_balance": None,
}  # fmt: skip
_HARMLESS = frozenset({
    "dump_folder", "hf_assets_path", "lr_scheduler.decay_ratio", "optimizer.implementation",
    "parallelism.data_parallel_shard_degree", "parallelism.pipeline_parallel_microbatch_size",
    "training.dataset", "training.dataset_path",
})  # fmt: skip
_FAMILIES = (
    "checkpoint.", "comm.", "compile.", "dataloader.", "debug.", "experimental.", "job.", "memory_estimation.",
    "metrics.", "model.", "parallelism.context_parallel_", "parallelism.disable_loss", "parallelism.enable_async",
    "parallelism.fsdp_", "parallelism.module_", "parallelism.pipeline_parallel_", "profil", "quantize.",
    "training.dataloader", "training.gc_", "validat", "activation_checkpoint.",
)  # fmt: skip
# Its clock is read milliseconds before the line is printed: on busy CPUs later for some lines, but not for most.
_SHARE, _LATE_S, _LATE_ON_CPUS_S = 0.005, 0.01, 0.05
_SHARE_OF_MOST, _FEWEST = 0.001, 3
_ROUNDED = 0.005  # of what has two decimals


def _check_rates(series: StepSeries) -> Iterator[str]:
    """Yield the two lines that differ most in the work of a token, by what they print of TFLOP/s or MFU."""
    for name in ("tflops", "mfu"):
        lines = [step for step in series.steps if {name, "tps"} <= step.reported.keys()]
        low = [(step.reported[name] - _ROUNDED) / (step.reported["tps"] + 0.5) for step in lines]
        high = [(step.reported[name] + _ROUNDED) / max(step.reported["tps"] - 0.5, 0.5) for step in lines]
        if lines and max(low) > min(high):
            one, other = lines[low.index(max(low))], lines[high.index(min(high))]
            words = [
                f"step {s.step} has {name} {s.reported[name]:g} at {s.reported['tps']:g} tps" for s in (one, other)
            ]
            yield f"{words[0]}, but {words[1]}: that is more work for each token"


def _slack(share: float, late_s: float) -> Callable[[Step], float]:
    return lambda step: share + late_s / ((step.seconds or late_s) * step.interval)


def _typical(steps: Sequence[Step]) -> list[Step]:
    """The line of the median rate with the median duration, where there are enough lines for one."""
    lines = sorted(steps, key=lambda step: step.reported["tps"])
    seconds = sorted((step.seconds or 0.0 for step in steps), reverse=True)
    middle = len(lines) // 2
    return [lines[middle].model_copy(update={"seconds": seconds[middle]})] if len(lines) >= _FEWEST else []


class TorchtitanOptions(ProgramOptions):
    """Options of this engine."""

    program: str = "module:torchtitan.train"
    """Program that each rank runs."""
    model: str = "llama3"
    """Name of the model, which is also that of its module from version 0.3 on."""
    flavor: str | None = None
    """Size of the model in versions up to 0.2."""
    config: str | None = None
    """Function with the configuration of the model in versions from 0.3 on; give this or `flavor`."""
    launcher_args: tuple[str, ...] = ("--role", "rank", "--tee", "3")
    """Arguments of torchrun; these put the rank in front of each line."""


class Torchtitan(External):
    """See `base.Engine`."""

    name = "torchtitan"
    proof = "the line `Training completed`"
    options = TorchtitanOptions
    reader = READER
    statistics: Mapping[str, Statistic] = {
        "median_tps": rate(
            "tokens/s/gpu",
            "median of `tps` over the judged lines",
            lambda m: external.over_lines(m, [step.reported.get("tps") for step in m.judged], stats.median),
            speed="tokens_per_s_per_gpu",
        )
    }
    shapes = DENSE | MIXTURES | {"model.latent_attention", "parallelism.context"}

    def problems(self, recipe: Recipe, topology: Topology) -> Iterator[str]:
        yield from super().problems(recipe, topology)
        yield from overrides.batch_problem(recipe, topology)
        yield from overrides.precision_problem(recipe, topology, ("fp32", "bf16", "fp8", "mxfp8"))
        layout, options = recipe.parallelism, options_of(recipe, TorchtitanOptions)
        if (options.flavor is None) == (options.config is None):
            yield "options: give flavor, or config for versions from 0.3 on"
        if layout.sharding not in {"none", "full"}:
            yield "engine torchtitan shards nothing (none) or everything (full)"
        if layout.sequence != (layout.tensor > 1):
            yield "engine torchtitan splits the sequence wherever it has tensor parallelism"
        if layout.virtual_pipeline > 1 or recipe.model.dropout:
            yield "engine torchtitan has no virtual_pipeline and no dropout"

    def arguments(self, recipe: Recipe, topology: Topology | None = None) -> Rules:
        own = options_of(recipe, TorchtitanOptions).arguments
        same = overrides.rules_of_given(_given(recipe, topology, old=True), {**_FIELDS, **_OLD_FIELDS})
        if recipe.precision not in _CONVERTERS:
            same["model.converters"] = Same(field="precision", allowed=(None,))
        elif recipe.precision == "fp8":
            same["model.converters"] = Same(field="precision", allowed=(_CONVERTERS["fp8"], "float8"))
        batch = same["training.global_batch_size"]
        same["training.global_batch_size"] = Same(field=batch.field, allowed=(*batch.allowed, -1))
        return Rules(own=own, same=same, refused=_REFUSED, harmless=_HARMLESS, families=_FAMILIES, usual=_USUAL)

    def asks(self, recipe: Recipe, topology: Topology) -> Asks:
        return {
            "parameters": parameters(recipe.model, 0),
            "vocab_size": vocabulary(recipe.model),
            "kv_groups": recipe.model.query_groups,
            "context_parallel": recipe.parallelism.context,
        }

    def footprint(self, recipe: Recipe, topology: Topology) -> Footprint | None:
        """Return what its tables give: 77 GiB for Llama 3.1 8B on 8 GPUs, 62 on 128, with its operators recomputed."""
        usual = super().footprint(recipe, topology)
        return None if usual is None else replace(usual, activation=23)

    def compare(self, recipe: Recipe, topology: Topology, series: StepSeries) -> SettingsCheck:
        check = super().compare(recipe, topology, series)
        in_8_bits = any(claim.name == "precision" for claim in series.claims)
        if recipe.precision not in _CONVERTERS or in_8_bits or not series.claims:
            return check
        return replace(check, differ=(*check.differ, "its log does not say that its products had 8 bits"))

    def work(self, recipe: Recipe, topology: Topology, place: Place) -> Script:
        options, where = options_of(recipe, TorchtitanOptions), f"recipe {recipe.name}: options"
        own = external.fill_arguments(options.arguments, place, where)
        given = _given(recipe, topology, old=options.config is None)
        if options.config is None:
            names = {"model.name": options.model, "model.flavor": options.flavor}
            output, last = {"job.print_config": True, "job.dump_folder": f"{place.folder}/results"}, []
        else:
            names = {"module": options.model, "config": options.config}
            output = {"debug.print_config": True, "dump_folder": f"{place.folder}/results"}
            last = [f"activation-checkpoint:{recipe.parallelism.activation_checkpointing}"]
        arguments = {**names, **output, "compile.enable": recipe.compile, "metrics.log_freq": 1, **given, **own}
        command = Command(
            launcher="torchrun",
            argv=(*external.program_words(options.program, place, where), *external.flags(arguments), *last),
            launcher_args=options.launcher_args,
        )
        return Script(commands=(command,), notes=options.notes)

    def read(self, folder: Path, recipe: Recipe) -> StepSeries:
        """Read the log; a step whose batch is unknown has that of the recipe, which `doubts` compares with its rate."""
        series = super().read(folder, recipe)
        if all(step.samples is not None for step in series.steps):
            return series
        batch = {"samples": recipe.samples_per_step, "tokens": recipe.tokens_per_step}
        steps = (step if step.samples is not None else step.model_copy(update=batch) for step in series.steps)
        return series.model_copy(update={"steps": tuple(steps)})

    def doubts(self, recipe: Recipe, topology: Topology, series: StepSeries) -> Iterator[str]:
        yield from external.check_training(self, recipe, topology, series)
        yield from _check_rates(series)
        of_rank, late = recipe.tokens_per_step / topology.world_size, _LATE_S if topology.gpus else _LATE_ON_CPUS_S
        timed = [step for step in series.steps if not step.paused and step.seconds and "tps" in step.reported]
        for steps, slack in ((timed, _slack(_SHARE, late)), (_typical(timed), _slack(_SHARE_OF_MOST, _LATE_S))):
            yield from agreement.check_product(steps, of_rank, ("tps", "seconds"), slack)


def _given(recipe: Recipe, topology: Topology | None, *, old: bool) -> dict[str, Any]:
    """Arguments from the recipe; `old` for versions up to 0.2."""
    layout, optimizer = recipe.parallelism, recipe.optimizer
    copies = (topology.world_size if topology else 1) // layout.model_parallel_size
    others: dict[str, Any] = {
        "training.mixed_precision_param": "float32" if recipe.precision == "fp32" else "bfloat16",
        "parallelism.data_parallel_replicate_degree": max(1, copies) if layout.sharding == "none" else 1,
        "lr_scheduler.min_lr_factor": 0.1,
    }
    if not old:
        return overrides.values_of(recipe, _FIELDS, others)
    return overrides.values_of(recipe, {**_FIELDS, **_OLD_FIELDS}, {
        **others,
        "optimizer.beta1": optimizer.betas[0],
        "optimizer.beta2": optimizer.betas[1],
        "model.converters": _CONVERTERS.get(recipe.precision),
    })  # fmt: skip


ENGINE = Torchtitan()
