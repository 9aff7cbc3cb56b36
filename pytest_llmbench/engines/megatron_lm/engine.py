"""Megatron-LM's `pretrain_gpt.py`, as JSC's NLP benchmark runs it: torchrun on every node, read by its own log line.

Logs of Megatron-Bridge, which trains by the same loop, are read and compared with the same recipes.
"""

import itertools
import statistics as stats
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.shape import DENSE, MIXTURES, Rotary
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.claims import Asks, Setting, SettingsCheck, Span, on_off
from pytest_llmbench.core.record.series import StepSeries
from pytest_llmbench.engines import external, overrides
from pytest_llmbench.engines.base import Command, Place, Script, options_of
from pytest_llmbench.engines.external import External, ProgramOptions
from pytest_llmbench.engines.megatron_lm import events as megatron_events
from pytest_llmbench.engines.megatron_lm.log import READER
from pytest_llmbench.engines.overrides import Rules, Same
from pytest_llmbench.judging import agreement
from pytest_llmbench.judging.findings import too_many_skipped
from pytest_llmbench.judging.flops import parameters, parameters_of_stages, vocabulary
from pytest_llmbench.judging.statistics import TOKENS_OF_RECORD, Measurement, Statistic, rate, ratio, time
from pytest_llmbench.readers import tensorboard

_FIELDS = {
    "tensor-model-parallel-size": "parallelism.tensor",
    "pipeline-model-parallel-size": "parallelism.pipeline",
    "num-layers-per-virtual-pipeline-stage": "parallelism.virtual_pipeline",
    "num-layers": "model.layers",
    "hidden-size": "model.hidden_size",
    "num-attention-heads": "model.attention_heads",
    "seq-length": "sequence_length",
    "max-position-embeddings": "sequence_length",
    "micro-batch-size": "micro_batch_size",
    "global-batch-size": "global_batch_size",
    "attention-dropout": "model.dropout",
    "hidden-dropout": "model.dropout",
    "position-embedding-type": "model.positions",
    "sequence-parallel": "parallelism.sequence",
    "use-distributed-optimizer": "parallelism.sharding",
    "optimizer": "optimizer",
    "adam-beta1": "optimizer.betas",
    "adam-beta2": "optimizer.betas",
    "adam-eps": "optimizer.eps",
    "lr": "optimizer.learning_rate",
    "lr-decay-style": "optimizer.decay",
    "clip-grad": "optimizer.clip_grad_norm",
    "weight-decay": "optimizer.weight_decay",
}


# How Megatron-LM names products in 8 or 4 bits: the bits, their format, and their scales.
_FEW_BITS: Mapping[str, tuple[str, str, str]] = {
    "fp8": ("fp8", "hybrid", "tensorwise"), "mxfp8": ("fp8", "e4m3", "mxfp8"), "nvfp4": ("fp4", "e2m1", "nvfp4"),
}  # fmt: skip


def _half(recipe: Recipe) -> str:
    return "bf16" if recipe.precision in _FEW_BITS else recipe.precision


def _ends(recipe: Recipe) -> int:
    """Count embedding and output layer as layers if the layers divide into stages only with these."""
    stages = recipe.parallelism.pipeline * recipe.parallelism.virtual_pipeline
    return 2 if recipe.model.layers % stages and (recipe.model.layers + 2) % stages == 0 else 0


def _shape(recipe: Recipe) -> Iterator[tuple[str, str, Any]]:
    """Yield arguments that a shape beyond that of GPT-3 needs: name, key of the recipe, and value."""
    model, layout = recipe.model, recipe.parallelism
    gelu, rotary, experts = model.activation in {None, "gelu"}, model.rotary, model.experts
    given: list[tuple[str, str, Any]] = [
        ("group-query-attention", "query_groups", model.query_groups is not None),
        ("num-query-groups", "query_groups", model.query_groups),
        ("kv-channels", "head_size", None if model.latent_attention else model.head_size),
        ("ffn-hidden-size", "feed_forward_size", model.feed_forward_size),
        ("swiglu" if model.gated else "squared-relu", "activation", not gelu),
        ("normalization", "norm", "RMSNorm" if model.norm == "rms_norm" else None),
        ("disable-bias-linear", "biases", model.biases != "all"),
        ("add-qkv-bias", "biases", model.biases == "qkv"),
        ("untie-embeddings-and-output-weights", "tied_embeddings", not model.tied_embeddings),
        ("qk-layernorm", "query_key_norm", model.query_key_norm),
        ("rotary-base", "rotary.base", rotary.base if rotary.base != Rotary().base else None),
        ("rotary-percent", "rotary.fraction", rotary.fraction if rotary.fraction < 1 else None),
        ("use-rope-scaling", "rotary.scaling", rotary.scaling is not None),
        ("rope-scaling-factor", "rotary.scaling.factor", rotary.scaling.factor if rotary.scaling else None),
        ("mtp-num-layers", "further_predictions", model.further_predictions or None),
    ]
    if model.window is not None:
        given += [
            ("window-size", "window.size", f"{model.window.size - 1},0"),
            ("window-attn-skip-freq", "window.full_every", model.window.full_every),
        ]
    if (latent := model.latent_attention) is not None:
        given += [
            ("multi-latent-attention", "latent_attention", True),
            ("q-lora-rank", "latent_attention.query_rank", latent.query_rank),
            ("kv-lora-rank", "latent_attention.key_value_rank", latent.key_value_rank),
            ("qk-head-dim", "head_size", model.head_size),
            ("qk-pos-emb-head-dim", "latent_attention.rotary_size", latent.rotary_size),
            ("v-head-dim", "latent_attention.value_size", latent.value_size),
        ]
    if experts is not None:
        dense = experts.dense_layers
        given += [
            ("num-experts", "experts.number", experts.number),
            ("moe-router-topk", "experts.top_k", experts.top_k),
            ("moe-ffn-hidden-size", "experts.feed_forward_size", experts.feed_forward_size),
            ("moe-shared-expert-intermediate-size", "experts.shared_size", experts.shared_size or None),
            ("moe-layer-freq", "experts.dense_layers", f"([0]*{dense}+[1]*{model.expert_layers})" if dense else None),
        ]
    yield from ((name, f"model.{key}", value) for name, key, value in given if value is not None and value is not False)
    if _ends(recipe):
        yield "account-for-embedding-in-pipeline-split", "parallelism.pipeline", True
        yield "account-for-loss-in-pipeline-split", "parallelism.pipeline", True
    if recipe.precision in _FEW_BITS:
        bits, form, scales = _FEW_BITS[recipe.precision]
        yield f"{bits}-format", "precision", form
        yield f"{bits}-recipe", "precision", scales
    for name, key, ranks in (
        ("context-parallel-size", "context", layout.context), ("expert-model-parallel-size", "expert", layout.expert),
    ):  # fmt: skip
        if ranks > 1:
            yield name, f"parallelism.{key}", ranks
    if layout.expert > 1 and layout.tensor > 1:  # by default Megatron-LM divides each expert by tensor, too
        yield "expert-tensor-parallel-size", "parallelism.expert", 1


# Sizes that the program derives from others if its configuration leaves them out.
_DERIVED = {"ffn-hidden-size", "kv-channels", "moe-ffn-hidden-size", "num-query-groups"}


# How Megatron-LM prints what it parses.
def _printed(value: Any) -> tuple[Any, ...]:
    if isinstance(value, str) and value.startswith("(["):
        dense, sparse = (int(part.split("*")[1].rstrip(")")) for part in value.split("+"))
        return value, str([0] * dense + [1] * sparse)
    return (value, f"({', '.join(value.split(','))})") if isinstance(value, str) and "," in value else (value,)


_REFUSED: Mapping[str, str] = {
    "rampup-batch-size": "has smaller batches at first",
    "step-batch-size-schedule": "has other batches later",
    "decrease-batch-size-if-needed": "may have smaller batches",
    "iterations-to-skip": "leaves iterations out",
    "skip-train": "trains nothing",
    "freeze-all-layers": "trains nothing",
    "variable-seq-lengths": "has sequences of any length",
    "sft": "has sequences of any length",
    "perform-rl-step": "generates what it trains on",
    "fake-process-group": "does not communicate",
    "fp8-format": "multiplies in 8 bits",
    "fp8-hybrid": "multiplies in 8 bits",
    "fp8-e4m3": "multiplies in 8 bits",
    "fp4-format": "multiplies in 4 bits",
}
# Arguments without a rule above. Each must leave the model and the work of a step as they are.
_HARMLESS = frozenset({
    "pipeline-model-parallel-layout",
    "accumulate-allreduce-grads-in-fp32", "apply-query-key-layer-scaling", "attention-backend",
    "attention-softmax-in-fp32", "context-parallel-size", "cross-entropy-loss-fusion", "data-cache-path",
    "decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers", "moe-aux-loss-coeff", "moe-grouped-gemm",
    "moe-permute-fusion", "moe-router-dtype", "moe-router-enable-expert-bias", "moe-router-force-load-balancing",
    "moe-router-load-balancing-type", "moe-router-score-function", "moe-token-dispatcher-type",
    "data-path", "dataloader-type", "deterministic-mode", "end-weight-decay", "hysteresis",
    "initial-loss-scale", "loss-scale", "loss-scale-window", "make-vocab-size-divisible-by",
    "max-position-embeddings", "merge-file", "min-loss-scale", "min-lr", "mock-data",
    "no-async-tensor-model-parallel-allreduce", "no-bias-dropout-fusion", "no-bias-gelu-fusion",
    "no-check-for-nan-in-loss-and-grad", "no-create-attention-mask-in-dataloader",
    "no-gradient-accumulation-fusion", "no-initialization", "no-masked-softmax-fusion", "no-mmap-bin-files",
    "no-persist-layer-norm", "no-rope-fusion", "num-workers", "per-split-data-args-path", "seed", "split",
    "start-weight-decay", "test-data-path", "timing-log-level", "timing-log-option", "train-data-path",
    "train-samples", "transformer-impl", "use-cpu-initialization", "use-flash-attn", "use-mcore-models",
    "valid-data-path", "vocab-file",
})  # fmt: skip
_FAMILIES = (
    "async-", "auto-detect-ckpt-", "ckpt-", "ddp-", "disable-gloo-", "disable-straggler-", "dist-ckpt-", "distributed-",
    "enable-one-logger", "eval-", "exit-duration-", "exit-on-", "exit-signal-", "init-method-", "log-", "lr-decay-",
    "lr-warmup-", "lr-wsd-", "manual-gc", "nccl-", "no-load-", "no-log-", "no-one-logger", "no-overlap-", "no-save-",
    "one-logger-", "overlap-", "profile", "rerun-", "save", "tensorboard-", "tiktoken-", "tokenizer-", "tp-comm-",
    "use-dist-ckpt", "use-pytorch-profiler", "use-tp-", "wandb-",
)  # fmt: skip
# Arguments that change the work of a step and have no key in a recipe, each with Megatron-LM's default.
_USUAL: Mapping[str, Any] = {
    "add-bias-linear": True, "finetune": None,
    "main-grads-dtype": "torch.float32", "main-params-dtype": "torch.float32", "exp-avg-dtype": "torch.float32",
    "exp-avg-sq-dtype": "torch.float32", "load": None, "pretrained-checkpoint": None, "mtp-num-layers": None,
    "multi-latent-attention": None, "window-size": None, "reset-attention-mask": None, "hybrid-layer-pattern": None,
    "hybrid-override-pattern": None, "heterogeneous-layers-config-path": None, "squared-relu": None,
    "untie-embeddings-and-output-weights": None, "qk-layernorm": None, "optimizer-cpu-offload": None,
    "cpu-offloading-num-layers": 0, "calculate-per-token-loss": None, "experimental-attention-variant": None,
    "linear-attention-freq": None, "moe-layer-freq": 1, "normalization": "LayerNorm", "rotary-percent": 1.0,
    "first-last-layers-bf16": None, "reset-position-ids": None, "eod-mask-loss": None, "skipped-train-samples": 0,
    "consumed-train-samples": 0, "add-position-embedding": True, "softmax-type": "vanilla",
    **dict.fromkeys((
        "apply-residual-connection-post-layernorm", "attention-output-gate", "fp16-lm-cross-entropy", "fp4", "fp8",
        "fp32-residual-connection", "hybrid-context-parallel", "is-hybrid-model", "moe-expert-capacity-factor",
        "moe-use-upcycling", "openai-gelu", "qk-l2-norm", "quick-geglu", "use-mup",
    )),
}  # fmt: skip
_CHECKPOINTING_FIELD = "parallelism.activation_checkpointing"


def _in_billions(recipe: Recipe, positions: int, padded_to: int) -> Span:
    """The total that Megatron-LM prints with two decimals, without learned positions and most biases."""
    model = recipe.model
    without, whole = (parameters(model, count) for count in (0, positions))
    padding = padded_to * recipe.parallelism.tensor * model.hidden_size
    return Span(0.98 * without - 5e6, whole + padding + 5e6)


_RATES = {
    "throughput_per_gpu": "TFLOP/s per GPU",
    "tflops": "TFLOP/s per GPU",
    "samples_per_second": "samples/s",
    "tokens_per_gpu_per_second": "tokens/s per GPU",
}
_CHECKPOINTING: Mapping[str, list[str]] = {
    "none": [],
    "selective": ["--recompute-activations", "--recompute-granularity", "selective"],
    "full": ["--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"],
}


def _tokens_per_s(m: Measurement, *, all_lines: bool) -> float | None:
    """Return the rate of all lines, or of those whose mean leaves out the steps of the first line."""
    lines = [step for step in m.steps if all_lines or step.step - step.interval >= m.steps[0].step]
    return ratio(m.recipe.tokens_per_step, external.over_lines(m, [step.seconds for step in lines], stats.fmean))


_RULE = "1 / mean of `elapsed time per iteration` over {lines} × global batch size × sequence length"
_STATISTICS: Mapping[str, Statistic] = {
    "tokens_per_s_all_lines": rate(
        "tokens/s",
        _RULE.format(lines="all logged lines, as JUBE has it"),
        lambda m: _tokens_per_s(m, all_lines=True),
        speed="tokens_per_s",
    ),
    "time_for_20m_tokens_all_lines": time(
        "20,000,000 tokens / tokens_per_s_all_lines, the time JSC's benchmark reports",
        lambda m: ratio(TOKENS_OF_RECORD, _tokens_per_s(m, all_lines=True)),
        speed="seconds_for_20m_tokens",
    ),
    "time_for_20m_tokens_without_first_line": time(
        "20,000,000 tokens / tokens per second, of " + _RULE.format(lines="all logged lines without iteration 1"),
        lambda m: ratio(TOKENS_OF_RECORD, _tokens_per_s(m, all_lines=False)),
        speed="seconds_for_20m_tokens",
    ),
    "reported_tflops_per_gpu": rate(
        "TFLOP/s/gpu",
        "mean of the TFLOP/s per GPU that Megatron-LM logs, by its own formula",
        lambda m: external.over_lines(
            m, [step.reported.get("tflops", step.reported.get("throughput_per_gpu")) for step in m.steps], stats.fmean
        ),
    ),
}


# The number that Megatron-Bridge's rank 0 prints has two decimals, and the ranks' clocks are milliseconds apart.
_STEP_TIME_S, _STEP_TIME_SHARE = 0.02, 0.02


def _check_step_times(series: StepSeries) -> Iterator[str]:
    """Yield the first line whose duration differs from all that rank 0 printed around it."""
    near = (None, *series.steps, None)
    for before, step, after in zip(near, near[1:], near[2:], strict=False):
        times = [line.reported.get("step_time") for line in (before, step, after) if line is not None]
        known = [time for time in times if time is not None]
        slack = _STEP_TIME_S + _STEP_TIME_SHARE * (step.seconds or 0.0) if step else 0.0
        if step and step.seconds and known and not any(abs(time - step.seconds) <= slack for time in known):
            yield f"step {step.step} took {step.seconds:.6g} s by its line, and {known[0]:g} s by that of rank 0"
            return


# Settings of the configuration that Megatron-Bridge prints, by section; None stands for all with a rule. Lists and what
# is recomputed, stay unchecked: its tables leave that out.
_BRIDGE: Mapping[str, Collection[str] | None] = {
    "model": None,
    "train": ("train_iters", "micro_batch_size", "global_batch_size"),
    "ddp": ("use_distributed_optimizer",),
    "optimizer": ("optimizer", "lr", "weight_decay", "clip_grad", "adam_beta1", "adam_beta2", "adam_eps"),
}
_BRIDGE_NAMES: Mapping[str, str] = {
    "gated_linear_unit": "swiglu", "num_moe_experts": "num_experts",
    "virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank",
    # That of Megatron-LM's tokenizer lacks the end of a document.
    **dict.fromkeys(("vocab_size", "moe_layer_freq", "window_size", "window_attn_skip_freq"), ""),
    "recompute_granularity": "",
}  # fmt: skip


def _of_bridge(given: Setting, rules: Rules) -> Setting:
    """Name a setting of Megatron-Bridge as Megatron-LM does, if it has a rule."""
    section, _, leaf = given.name.partition(".")
    own = _BRIDGE.get(section, ())
    name = _BRIDGE_NAMES.get(leaf, leaf)
    if leaf in {"fp8", "fp4"} and section == "model":
        return given.model_copy(update={"name": leaf})
    flag = name.replace("_", "-")
    known = (flag in rules.same or flag in rules.own) and (own is None or leaf in own)
    return given.model_copy(update={"name": name}) if known else given


class MegatronLmOptions(ProgramOptions):
    """Options of this engine."""

    script: str = "pretrain_gpt.py"
    """Program that each rank runs."""
    launcher_args: tuple[str, ...] = ("--tee", "3")
    """Arguments of torchrun."""


class MegatronLM(External):
    """See `base.Engine`."""

    name = "megatron_lm"
    proof = "the line `[after training is done]` or `exiting program`, or the end at the time limit it is meant to have"
    options = MegatronLmOptions
    reader = READER
    statistics = _STATISTICS
    shapes = DENSE | MIXTURES | {
        "model.latent_attention", "model.window", "model.further_predictions", "parallelism.context",
    }  # fmt: skip

    def problems(self, recipe: Recipe, topology: Topology) -> Iterator[str]:
        yield from super().problems(recipe, topology)
        yield from overrides.batch_problem(recipe, topology)
        yield from overrides.precision_problem(recipe, topology, ("fp32", "bf16", "fp16", "fp8", "mxfp8", "nvfp4"))
        if recipe.parallelism.sharding not in {"none", "optimizer"}:
            yield "engine megatron_lm shards none or the optimizer"
        if recipe.model.activation == "relu":
            yield "engine megatron_lm has GELU, squared_relu and swiglu, not relu"

    def arguments(self, recipe: Recipe, topology: Topology | None = None) -> Rules:
        """Return the rule of each argument, those that the recipe's fields give among them."""
        own, layout, model = options_of(recipe, MegatronLmOptions).arguments, recipe.parallelism, recipe.model
        how = layout.activation_checkpointing
        same = overrides.rules_of({
            "encoder-seq-length": ("sequence_length", recipe.sequence_length),
            "decoder-seq-length": ("sequence_length", recipe.sequence_length),
            "encoder-num-layers": ("model.layers", model.layers),
            "decoder-num-layers": ("model.layers", model.layers),
            "model-parallel-size": ("parallelism.tensor", layout.tensor),
            # Without this switch of older versions, positions are those of `position-embedding-type`.
            "use-rotary-position-embeddings": ("model.positions", False, model.positions == "rope"),
            # A tokenizer may add a token.
            "vocab-size": ("model.vocab_size", model.vocab_size, model.vocab_size - 1, False),
            "recompute-activations": (_CHECKPOINTING_FIELD, how == "selective"),
            "recompute-granularity": (_CHECKPOINTING_FIELD, None if how == "none" else how),
            "checkpoint-activations": (_CHECKPOINTING_FIELD, how == "full"),
            "num-virtual-stages-per-pipeline-rank": ("parallelism.virtual_pipeline", layout.virtual_pipeline),
            "train-iters": ("steps", recipe.steps, False),
            "exit-interval": ("steps", recipe.steps, False),
            "num-layers-per-virtual-pipeline-stage": ("parallelism.virtual_pipeline", None),
            "virtual-pipeline-model-parallel-size": (
                "parallelism.virtual_pipeline", layout.virtual_pipeline if layout.virtual_pipeline > 1 else None
            ),
        })  # fmt: skip
        same |= overrides.rules_of_given(_given(recipe), _FIELDS)
        same |= overrides.rules_of({name: ("precision", _half(recipe) == name) for name in ("bf16", "fp16")})
        ranks = {"context-parallel-size": layout.context, "expert-model-parallel-size": layout.expert}
        same |= overrides.rules_of({name: ("parallelism", ranks[name]) for name in ranks.keys() - own.keys()})
        same |= {
            name: Same(field=field, allowed=_printed(value), needed=name not in _DERIVED)
            for name, field, value in _shape(recipe)
        }
        if recipe.precision in _FEW_BITS:
            bits, form, _ = _FEW_BITS[recipe.precision]
            same[bits] = Same(field="precision", allowed=(form,), needed=True)
        if "disable-bias-linear" in same:
            same["add-bias-linear"] = Same(field="model.biases", allowed=(False,))
        del same["max-position-embeddings"]  # more of them are another model, of which `known` below decides
        # Arguments without a field in the recipe; with another value, the work of a step is unknown.
        usual = {"ffn-hidden-size": model.feed_forward_width, "kv-channels": model.head_width}
        as_usual = {name for name, value in usual.items() if own.get(name) == value}
        return Rules(
            own=own,
            same=same,
            refused=_REFUSED,
            harmless=_HARMLESS | as_usual,
            families=_FAMILIES,
            usual=_USUAL if model.latent_attention else {**_USUAL, "kv-channels": model.head_width},
        )

    def asks(self, recipe: Recipe, topology: Topology) -> Asks:
        own = {name: value for name, _, value in _shape(recipe)} | dict(options_of(recipe, MegatronLmOptions).arguments)
        gated, grouped = own.get("swiglu"), own.get("group-query-attention")
        context = own.get("context-parallel-size") or 1
        positions = int(own.get("max-position-embeddings") or recipe.sequence_length)
        padded_to = int(own.get("make-vocab-size-divisible-by") or 128)
        # Megatron-LM counts and divides these by rules of its own.
        other = recipe.model.experts or recipe.model.latent_attention or recipe.model.further_predictions
        known = self.uncounted(recipe) is None and not other and recipe.model.layers % recipe.parallelism.pipeline == 0
        of_stages = parameters_of_stages(recipe.model, positions, recipe.parallelism, padded_to) if known else None
        in_fp32 = _half(recipe) == "bf16" or own.get("accumulate-allreduce-grads-in-fp32")
        loaded = own.get("load") or own.get("pretrained-checkpoint")
        asked: Asks = {
            # That of the weights; `compare` asks for the setting of few bits.
            **({"precision": None, "bf16": on_off(True)} if recipe.precision in _FEW_BITS else {}),
            "gradient_precision": None if own.get("grad-reduce-in-bf16") else "fp32" if in_fp32 else None,
            "initial_weights": None if loaded else "random",
            "parameters": _in_billions(recipe, positions, padded_to) if known else None,
            "context_parallel": context,
            "experts": own.get("num-experts") or 0,
            "feed_forward_size": own.get("ffn-hidden-size") or (None if gated else recipe.model.feed_forward_width),
            "gated_feed_forward": on_off(gated),
            "grouped_queries": on_off(grouped),
            "kv_groups": own.get("num-query-groups") if grouped else None,
            "optimizer": "adam",
            "parameters_of_rank": of_stages,
            "vocab_size": vocabulary(recipe.model),
        }
        return asked if context == recipe.parallelism.context else {**asked, "micro_batches": None}

    def compare(self, recipe: Recipe, topology: Topology, series: StepSeries) -> SettingsCheck:
        # If the checkpoint's folder is still empty, Megatron-LM starts from random weights and prints that.
        random = any((claim.name, claim.value) == ("initial_weights", "random") for claim in series.claims)
        rules = self.arguments(recipe, topology)
        settings = tuple(
            _of_bridge(given, rules) if "." in given.name else given
            for given in series.settings if not (random and given.name == "load")
        )  # fmt: skip
        of_bridge = any(given.name.partition(".")[0] in _BRIDGE for given in series.settings if "." in given.name)
        check = rules.compare(settings)
        bits, *_ = _FEW_BITS.get(recipe.precision, ("",))
        printed = {given.name for given in settings}
        if not bits or {bits, f"{bits}_recipe"} <= printed or not (series.claims or of_bridge):
            return check
        lacking = f"its log prints no {bits} and {bits}_recipe, so the bits of its products are unknown"
        return replace(check, differ=(*check.differ, lacking))

    def work(self, recipe: Recipe, topology: Topology, place: Place) -> Script:
        options = options_of(recipe, MegatronLmOptions)
        where = f"recipe {recipe.name}: options"
        script = options.script if options.script.startswith("module:") else f"{{root}}/{options.script}"
        own = external.fill_arguments(options.arguments, place, where)
        length = {} if own.get("train-iters") or own.get("train-samples") else {"train-iters": recipe.steps}
        arguments = {**_given(recipe), **length, **own}
        recomputation = _CHECKPOINTING[recipe.parallelism.activation_checkpointing]
        command = Command(
            launcher="torchrun",
            argv=(*external.program_words(script, place, where), *external.flags(arguments), *recomputation),
            launcher_args=options.launcher_args,
            folder=place.environment.root,
        )
        return Script(commands=(command,), notes=options.notes)

    def read(self, folder: Path, recipe: Recipe) -> StepSeries:
        """Read the log and compare it with the event files; without steps in the log, use theirs.

        That the run was completed is in the log alone.
        """
        logged = super().read(folder, recipe)
        events = megatron_events.series(() if folder.is_file() else folder.rglob(tensorboard.PATTERN))
        if logged.steps:
            differ = megatron_events.disagreements(logged, events)
            first = tuple(itertools.islice(differ, 1))
            twice = any(step.seconds for step in events.steps)
            return logged.model_copy(update={"contradictions": first, "written": events.written, "timed_twice": twice})
        if not events.steps and not events.unread:
            return logged
        steps = (step.model_copy(update={"tokens": self.tokens_of(step, recipe)}) for step in events.steps)
        return logged.model_copy(
            update={
                "steps": tuple(steps),
                "first_apart": events.first_apart,
                "unreadable": (*logged.unreadable, *events.unreadable),
                "unread": logged.unread + events.unread,
                "restarted": logged.restarted or events.restarted,
                "written": events.written,
            }
        )

    def doubts(self, recipe: Recipe, topology: Topology, series: StepSeries) -> Iterator[str]:
        own = options_of(recipe, MegatronLmOptions).arguments
        loaded = own.get("load") or own.get("pretrained-checkpoint")
        yield from external.check_training(self, recipe, topology, series, untrained=not loaded)
        nan = sum(step.reported.get("number_of_nan_iterations", 0.0) for step in series.steps)
        if nan:
            yield f"{nan:g} iterations had a loss or a gradient that is not finite"
        if series.steps and all(step.loss is None for step in series.steps):
            skips = sum(step.reported.get("number_of_skipped_iterations", 0.0) for step in series.steps)
            named = sorted({name for step in series.steps for name in step.reported if "loss" in name})
            yield "no line has a loss" + (
                ": every iteration was skipped"
                if skips
                else f" of a known name (`lm loss` in Megatron-LM); it has {', '.join(named) or 'no other loss'}"
            )
        yield from agreement.check_work(series.steps, _RATES)
        yield from agreement.check_product(series.steps, recipe.samples_per_step, ("samples_per_second", "seconds"))
        tokens_of_rank = recipe.tokens_per_step / topology.world_size
        yield from agreement.check_product(series.steps, tokens_of_rank, ("tokens_per_gpu_per_second", "seconds"))
        yield from agreement.check_counts(series.steps, "consumed_samples", recipe.samples_per_step)
        yield from agreement.check_times(series, topology)
        yield from agreement.check_pace(series, topology)
        yield from _check_step_times(series)
        yield from external.check_missing_losses(series)
        yield from too_many_skipped(recipe, series)


def _given(recipe: Recipe) -> dict[str, Any]:
    spread, optimizer = recipe.parallelism, recipe.optimizer
    laid_out = recipe.options.get("arguments", {}).get("pipeline-model-parallel-layout")
    layers = (recipe.model.layers + _ends(recipe)) // (spread.pipeline * spread.virtual_pipeline)
    return overrides.values_of(recipe, _FIELDS, {
        "num-layers-per-virtual-pipeline-stage": layers if spread.virtual_pipeline > 1 and not laid_out else None,
        "position-embedding-type": "rope" if recipe.model.positions == "rope" else "learned_absolute",
        "use-distributed-optimizer": spread.sharding == "optimizer",
        "optimizer": "adam",
        "adam-beta1": optimizer.betas[0],
        "adam-beta2": optimizer.betas[1],
        _half(recipe): recipe.precision != "fp32",
    }) | {name: value for name, _, value in _shape(recipe)}  # fmt: skip


ENGINE = MegatronLM()
