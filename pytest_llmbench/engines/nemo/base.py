"""Base class for the engines of NeMo: reading logs and event files, and the rules for their numbers."""

import json
import re
import statistics as stats
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.shape import DENSE, Rotary
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.claims import Asks
from pytest_llmbench.core.record.series import Step, StepSeries
from pytest_llmbench.engines import external, overrides
from pytest_llmbench.engines.base import Place
from pytest_llmbench.engines.external import Argument, External
from pytest_llmbench.engines.nemo import log as nemo
from pytest_llmbench.engines.nemo.log import READER
from pytest_llmbench.engines.overrides import Rules
from pytest_llmbench.judging import agreement
from pytest_llmbench.judging.flops import parameters_of_stages, vocabulary
from pytest_llmbench.judging.statistics import Measurement, Statistic, rate, ratio, time
from pytest_llmbench.readers import tensorboard
from pytest_llmbench.readers.tensorboard import Digits, disagreements

_PRECISIONS: Mapping[str, tuple[Any, ...]] = {
    "fp32": (32, "32-true"),
    "bf16": ("bf16", "bf16-mixed"),
    "fp16": (16, "16-mixed"),
}
_LIMITS = ("trainer.limit_train_batches", "trainer.max_time", "trainer.max_epochs")
_REFUSED: Mapping[str, str] = {
    "model.rampup_batch_size": "has smaller batches at first",
    "trainer.accumulate_grad_batches": "makes several steps one",
    **dict.fromkeys(_LIMITS, "may end before the recipe's last step"),
}
_HARMLESS = frozenset({
    *_LIMITS,  # of a launcher's file; what was trained until then is counted by steps
    "bignlp_path", "cluster_type", "container", "container_mounts", "data_dir", "debug", "launcher_scripts_path",
    "model.activations_checkpoint_num_layers", "model.apply_query_key_layer_scaling", "model.gradient_as_bucket_view",
    "model.gradient_accumulation_fusion", "model.grad_allreduce_chunk_size_mb", "model.hysteresis",
    "model.max_position_embeddings", "model.megatron_amp_O2", "model.native_amp_growth_interval",
    "model.native_amp_init_scale", "model.persist_layer_norm", "model.seed", "model.use_cpu_initialization",
    "stages", "trainer.benchmark", "trainer.logger", "trainer.replace_sampler_ddp",
})  # fmt: skip
_FAMILIES = (
    "base_results_dir", "cluster.", "env_vars.", "exp_manager.", "model.data.", "model.nsys_profile.", "model.optim.",
    "model.tokenizer.", "run.", "run_", "trainer.enable_", "trainer.limit_test_", "trainer.limit_val_", "trainer.log_",
    "trainer.val_check_",
)  # fmt: skip


def _plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Name overrides as in the model's own configuration, which the launcher calls `training`."""
    return {name.lstrip("+").removeprefix("training."): value for name, value in arguments.items()}


def shape_arguments(recipe: Recipe) -> dict[str, tuple[str, Any]]:
    """Return overrides of NeMo 1's model configuration for a shape beyond that of GPT-3: key of the recipe, value."""
    model, context = recipe.model, recipe.parallelism.context
    activations = {"swiglu": "fast-swiglu", "squared_relu": "squared-relu", "relu": "relu"}
    given: dict[str, tuple[str, Any]] = {
        "position_embedding_type": ("model.positions", "rope" if model.positions == "rope" else None),
        "num_query_groups": ("model.query_groups", model.query_groups),
        "kv_channels": ("model.head_size", model.head_size),
        "ffn_hidden_size": ("model.feed_forward_size", model.feed_forward_size),
        "activation": ("model.activation", activations.get(model.activation or "")),
        "normalization": ("model.norm", "rmsnorm" if model.norm == "rms_norm" else None),
        "bias": ("model.biases", False if model.biases == "none" else None),
        "share_embeddings_and_output_weights": ("model.tied_embeddings", None if model.tied_embeddings else False),
        "rotary_base": ("model.rotary", model.rotary.base if model.rotary.base != Rotary().base else None),
        "rotary_percentage": ("model.rotary", model.rotary.fraction if model.rotary.fraction < 1 else None),
        "context_parallel_size": ("parallelism.context", context if context > 1 else None),
    }
    return {f"model.{name}": field_value for name, field_value in given.items() if field_value[1] is not None}


def common_arguments(recipe: Recipe, topology: Topology) -> dict[str, Argument]:
    """Return overrides of the model's configuration that every start gives."""
    return {
        "trainer.num_nodes": topology.nodes, "trainer.devices": topology.ranks_per_node,
        "trainer.max_steps": recipe.steps, "trainer.log_every_n_steps": 1, "exp_manager.resume_if_exists": False,
        "model.micro_batch_size": recipe.micro_batch_size, "model.global_batch_size": recipe.samples_per_step,
        "model.tensor_model_parallel_size": recipe.parallelism.tensor,
        "model.pipeline_model_parallel_size": recipe.parallelism.pipeline,
    }  # fmt: skip


_FIELDS = {
    "model.num_layers": "model.layers", "model.hidden_size": "model.hidden_size",
    "model.num_attention_heads": "model.attention_heads", "model.encoder_seq_length": "sequence_length",
    "model.data.seq_length": "sequence_length", "model.micro_batch_size": "micro_batch_size",
    "model.global_batch_size": "global_batch_size", "model.tensor_model_parallel_size": "parallelism.tensor",
    "model.pipeline_model_parallel_size": "parallelism.pipeline",
    "model.virtual_pipeline_model_parallel_size": "parallelism.virtual_pipeline",
    "model.sequence_parallel": "parallelism.sequence", "model.hidden_dropout": "model.dropout",
    "model.attention_dropout": "model.dropout", "model.optim.lr": "optimizer.learning_rate",
    "model.optim.weight_decay": "optimizer.weight_decay", "model.optim.sched.warmup_steps": "optimizer.warmup_steps",
    "trainer.max_steps": "steps", "trainer.gradient_clip_val": "optimizer.clip_grad_norm",
}  # fmt: skip
# Settings that change the work of a step, with the values that leave it that of GPT-3.
_USUAL: Mapping[str, Any] = {
    "trainer.accumulate_grad_batches": 1, "model.activation": "gelu", "model.bias": True,
    "model.normalization": ("layernorm", "layernorm1p", "LayerNorm"), "model.share_embeddings_and_output_weights": True,
    "model.position_embedding_type": ("learned_absolute", None), "model.transformer_block_type": "pre_ln",
    **dict.fromkeys(("model.context_parallel_size", "model.expert_model_parallel_size"), (1, None)),
    **dict.fromkeys((
        "model.cpu_offloading", "model.fp8", "model.num_moe_experts", "model.peft.peft_scheme",
        "model.restore_from_path", "model.resume_from_checkpoint", "model.window_size",
    )),
}  # fmt: skip
_CHECKPOINTING_FIELD = "parallelism.activation_checkpointing"


# Around the training, for `gnu_time`.
BEGIN = 'echo "BEGIN_TRAINING: $(LC_ALL=C date -u)"'
END = 'echo "END_TRAINING: $(LC_ALL=C date -u)"'

# Azure's steps, counted from 0 as NeMo does, and NVIDIA's first.
_AZURE_STEPS = (149, 169, 189)
_NVIDIA_FIRST = 5
_MAX_STEPS = re.compile(r"max_steps=(\d+)")
_PLAIN = re.compile(r"[\w./:@+-]+", re.ASCII)
# The log has three or four digits.
_DIGITS = (
    *(Digits(name=name, what=what, share=6e-3, of_one=False)
      for name, what in (("seconds", "time in seconds"), ("loss", "loss"), ("grad_norm", "gradient norm"))),
    Digits(name="samples", what="batch", of_one=False),
)  # fmt: skip
# Time of scripts between a date and the training, in which images are loaded and jobs started.
_AROUND_S = 60.0
# Event files hold 32-bit floats: above this a count of samples is rounded.
_EXACT_BELOW = 2**24


def _azure(m: Measurement) -> float | None:
    timings = {step.step - 1: step.seconds for step in m.steps if step.seconds is not None}
    return stats.fmean(timings[step] for step in _AZURE_STEPS) if timings.keys() >= set(_AZURE_STEPS) else None


def _nvidia(m: Measurement) -> float | None:
    timings = [step.seconds for step in m.steps]
    enough = len(timings) > _NVIDIA_FIRST + 1
    return external.over_lines(m, timings, lambda known: stats.fmean(known[_NVIDIA_FIRST:])) if enough else None


def _per_s(m: Measurement, of_sample: int = 1) -> float | None:
    # The times are those of the logged batch; NeMo 1 leaves it out of the log.
    logged = m.steps[-1].samples if m.steps else None
    return ratio(of_sample * (logged or m.recipe.samples_per_step), _nvidia(m))


_STATISTICS: Mapping[str, Statistic] = {
    "step_time_149_169_189": time(
        "mean of `train_step_timing` at steps 149, 169 and 189, counted from 0; each is the mean of 5 steps",
        _azure,
        speed="seconds_per_step",
    ),
    "step_time_after_5": time(
        "mean of all values of `train_step_timing` but the first 5, of at least 7, as NVIDIA's tool has it before it "
        "rounds",
        _nvidia,
        speed="seconds_per_step",
    ),
    "samples_per_s_after_5": rate(
        "samples/s",
        "global batch size / step_time_after_5, as NVIDIA's tool has it before it rounds",
        _per_s,
        speed="samples_per_s",
    ),
    "tokens_per_s_after_5": rate(
        "tokens/s",
        "global batch size × sequence length / step_time_after_5",
        lambda m: _per_s(m, m.recipe.sequence_length),
        speed="tokens_per_s",
    ),
    "step_time_last": time(
        "the last `train_step_timing`: the mean of the last 5 steps, the first of the run among them if it has 5",
        lambda m: m.steps[-1].seconds if m.steps else None,
        speed="seconds_per_step",
    ),
    "elapsed": time(
        "wall clock of the training command as GNU time prints it, the start of NeMo included",
        lambda m: m.totals.get("elapsed_s"),
    ),
}


class Nemo(External):
    """See `base.Engine`. An engine adds its name, its options and its script."""

    proof = "the line `Trainer.fit` stopped: `max_steps=...` reached"
    reader = READER
    statistics = _STATISTICS
    shapes = DENSE - {"model.query_key_norm"} | {"parallelism.context"}
    # Where NeMo 1's launcher sends what ranks print, under its results; NeMo's own files; the driver's.
    logs = ("**/*.log", "**/*.out", "**/*.err", "**/*.error", "**/*.txt")

    def problems(self, recipe: Recipe, topology: Topology) -> Iterator[str]:
        yield from super().problems(recipe, topology)
        yield from overrides.batch_problem(recipe, topology)
        yield from overrides.precision_problem(recipe, topology, ("fp32", "bf16", "fp16"))
        if recipe.parallelism.sharding not in {"none", "optimizer"}:
            yield f"engine {self.name} shards none or the optimizer"
        if recipe.model.biases == "qkv" or recipe.model.rotary.scaling is not None:
            yield "NeMo 1 has no key for model.biases: qkv, nor for model.rotary.scaling"

    def arguments(self, recipe: Recipe, topology: Topology | None = None) -> Rules:
        own = _plain(recipe.options.get("arguments", {}))
        how, model = recipe.parallelism.activation_checkpointing, recipe.model
        sharded = recipe.parallelism.sharding == "optimizer"
        granularity = ("full", None) if how == "none" else (how,)  # `full` of 0 layers is the same as none
        same = overrides.rules_of_given(overrides.values_of(recipe, _FIELDS, {}), _FIELDS)
        same |= overrides.rules_of({
            **shape_arguments(recipe),
            "trainer.precision": ("precision", *_PRECISIONS.get(recipe.precision, ())),
            "model.activations_checkpoint_granularity": (_CHECKPOINTING_FIELD, *granularity),
            "model.optim.name": (
                "parallelism.sharding", *(("distributed_fused_adam",) if sharded else ("fused_adam", "adam", "adamw")),
            ),
        })  # fmt: skip
        if how == "none":
            same |= overrides.rules_of({"model.activations_checkpoint_num_layers": (_CHECKPOINTING_FIELD, 0, None)})
        if topology is not None:
            ranks = {"trainer.num_nodes": topology.nodes, "trainer.devices": topology.ranks_per_node}
            same |= overrides.rules_of({name: ("topology", number) for name, number in ranks.items()})
        usual = {"model.ffn_hidden_size": model.feed_forward_width, "model.kv_channels": None}
        as_usual = {name for name, value in usual.items() if own.get(name) == value}
        return Rules(
            own=own, same=same, refused=_REFUSED, harmless=_HARMLESS | as_usual, families=_FAMILIES,
            usual={**_USUAL, "model.num_query_groups": (None, model.attention_heads)},
        )  # fmt: skip

    def asks(self, recipe: Recipe, topology: Topology) -> Asks:
        own = _plain(recipe.options.get("arguments", {}))
        positions = int(own.get("model.max_position_embeddings") or recipe.sequence_length)
        parameters = parameters_of_stages(recipe.model, positions, recipe.parallelism)
        return {
            "parameters_of_rank": parameters if self.uncounted(recipe) is None else None,
            "feed_forward_size": own.get("model.ffn_hidden_size") or recipe.model.feed_forward_width,
            "optimizer": "adam",
            "vocab_size": vocabulary(recipe.model),
        }

    def read(self, folder: Path, recipe: Recipe) -> StepSeries:
        """Read the steps from the event files, which have every digit, or else from the log.

        If the log has steps, too, both must agree. The proof of completion is in the log alone.
        """
        logged = super().read(folder, recipe)
        events = nemo.series(() if folder.is_file() else folder.rglob(tensorboard.PATTERN))
        if not events.steps and not events.unread:
            return logged
        return logged.model_copy(
            update={
                "steps": tuple(_add_samples(events.steps, recipe)),
                # Those of the event files alone: the log's steps are unused, so a damaged progress bar is harmless.
                "unreadable": events.unreadable,
                "unread": events.unread,
                "unread_after": events.unread_after,
                "restarted": logged.restarted or events.restarted,
                "written": events.written,
                "timed_twice": any(step.seconds for step in logged.steps),
                "contradictions": tuple(disagreements(logged.steps, events.steps, _DIGITS))[:1],
            }
        )

    def doubts(self, recipe: Recipe, topology: Topology, series: StepSeries) -> Iterator[str]:
        yield from external.check_training(self, recipe, topology, series)
        yield from _check_dates(series.totals)
        words = series.completed or ""
        stop = _MAX_STEPS.search(words)
        if words and (stop is None or int(stop[1]) != recipe.steps):
            yield f"it ended with {words!r}; the recipe says {recipe.steps} steps"
        if series.steps and all(step.loss is None for step in series.steps):
            yield "no step has a loss"
        yield from agreement.check_pace(series, topology)


def _check_dates(totals: Mapping[str, float]) -> Iterator[str]:
    """Yield a contradiction between GNU time and the dates around the training, which have whole seconds."""
    elapsed, begin, end = (totals.get(name) for name in ("elapsed_s", "begin_training", "end_training"))
    if elapsed is None or begin is None or end is None:
        return
    between = end - begin
    if not between / 2 - _AROUND_S <= elapsed <= between + 1.0:
        yield f"GNU time says that it took {elapsed:g} s; the dates around it are {between:g} s apart"


def hydra_words(arguments: Mapping[str, Argument], place: Place, where: str) -> list[str]:
    """Write overrides of a configuration in Hydra's notation, with the environment's names filled in.

    Raises ConfigError if the environment lacks a name.
    """
    own = external.fill_arguments(arguments, place, where)
    return [f"{name}={_hydra(value)}" for name, value in own.items() if value is not None]


def _hydra(value: Argument) -> str:
    if isinstance(value, tuple):
        return "[" + ",".join(json.dumps(word) for word in value) + "]"
    return json.dumps(value) if isinstance(value, str) and not _PLAIN.fullmatch(value) else str(value)


def _add_samples(steps: Iterable[Step], recipe: Recipe) -> Iterator[Step]:
    """Add the samples of each step, from the counts before and after it where the files have these."""
    before: float | None = None
    for step in steps:
        samples = step.samples
        consumed = step.reported.get("consumed_samples")
        if samples is None and before is not None and consumed is not None and consumed < _EXACT_BELOW:
            samples = round((consumed - before) / step.interval)
        tokens = None if samples is None else samples * recipe.sequence_length
        yield step.model_copy(update={"samples": samples, "tokens": tokens})
        before = consumed
