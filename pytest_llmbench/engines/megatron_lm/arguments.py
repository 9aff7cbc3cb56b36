"""The arguments of Megatron-LM's `pretrain_gpt.py`: which a recipe gives, and what others do to its training."""

from collections.abc import Mapping
from typing import Any

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.record.claims import Asks, on_off
from pytest_llmbench.engines.overrides import Rules, Same, given
from pytest_llmbench.judging.flops import parameters_of_stages, vocabulary

_FIELDS = {
    "tensor-model-parallel-size": "parallelism.tensor",
    "pipeline-model-parallel-size": "parallelism.pipeline",
    "num-layers-per-virtual-pipeline-stage": "parallelism.virtual_pipeline",
    "num-layers": "model.layers",
    "hidden-size": "model.hidden_size",
    "num-attention-heads": "model.attention_heads",
    "seq-length": "sequence_length",
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
# Besides, every rule above knows its own. What is added here must change neither the model nor a step's work.
_HARMLESS = frozenset({
    "accumulate-allreduce-grads-in-fp32", "apply-query-key-layer-scaling", "attention-backend",
    "attention-softmax-in-fp32", "context-parallel-size", "cross-entropy-loss-fusion", "data-cache-path",
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
# The recompute arguments that each way of checkpointing may have.
_GRANULARITY = {"none": None, "selective": "selective", "full": "full"}


def rules(recipe: Recipe, arguments: Mapping[str, Any], own: Mapping[str, Any]) -> Rules:
    """Return the rule of each argument; `arguments` are those that the recipe's fields give."""
    how = recipe.parallelism.activation_checkpointing
    other_names = {
        "encoder-seq-length": Same(field="sequence_length", allowed=(recipe.sequence_length,)),
        "decoder-seq-length": Same(field="sequence_length", allowed=(recipe.sequence_length,)),
        "encoder-num-layers": Same(field="model.layers", allowed=(recipe.model.layers,)),
        "decoder-num-layers": Same(field="model.layers", allowed=(recipe.model.layers,)),
        "model-parallel-size": Same(field="parallelism.tensor", allowed=(recipe.parallelism.tensor,)),
        "use-rotary-position-embeddings": Same(field="model.positions", allowed=(recipe.model.positions == "rope",)),
        "vocab-size": Same(field="model.vocab_size", allowed=_vocabularies(recipe)),
        "bf16": Same(field="precision", allowed=(recipe.precision == "bf16",)),
        "fp16": Same(field="precision", allowed=(recipe.precision == "fp16",)),
        "recompute-activations": Same(field=_CHECKPOINTING, allowed=(how == "selective",)),
        "recompute-granularity": Same(field=_CHECKPOINTING, allowed=(_GRANULARITY[how],)),
        "checkpoint-activations": Same(field=_CHECKPOINTING, allowed=(how == "full",)),
        "num-virtual-stages-per-pipeline-rank": Same(
            field="parallelism.virtual_pipeline", allowed=(recipe.parallelism.virtual_pipeline,)
        ),
        "train-iters": Same(field="steps", allowed=(recipe.steps, False)),
        "exit-interval": Same(field="steps", allowed=(recipe.steps, False)),
    }
    free = {"max-position-embeddings"}
    same = {name: rule for name, rule in given(arguments, _FIELDS).items() if name not in free}
    # What has no field of its own follows from others; with another value, nobody knows what a step computes.
    shape = recipe.model
    usual = {"ffn-hidden-size": 4 * shape.hidden_size, "kv-channels": shape.hidden_size // shape.attention_heads}
    as_usual = {name for name, value in usual.items() if own.get(name) == value}
    return Rules(same={**same, **other_names}, refused=_REFUSED, harmless=_HARMLESS | as_usual, families=_FAMILIES)


_CHECKPOINTING = "parallelism.activation_checkpointing"


def _vocabularies(recipe: Recipe) -> tuple[int | bool, ...]:
    """Return the legal sizes: the model's, one less for a tokenizer that adds a token, or none."""
    return (recipe.model.vocab_size, recipe.model.vocab_size - 1, False)


def asks(recipe: Recipe, own: Mapping[str, Any], *, known: bool) -> Asks:
    """Return what a log must claim where the recipe's fields do not say it; `own` are further arguments.

    `known` is whether the model is the one that these fields describe.
    """
    gated, grouped = own.get("swiglu"), own.get("group-query-attention")
    context = own.get("context-parallel-size") or 1
    positions = int(own.get("max-position-embeddings") or recipe.sequence_length)
    padded_to = int(own.get("make-vocab-size-divisible-by") or 128)
    parameters = parameters_of_stages(recipe.model, positions, recipe.parallelism, padded_to) if known else None
    asked: Asks = {
        "context_parallel": context,
        "experts": own.get("num-experts") or 0,
        "feed_forward_size": own.get("ffn-hidden-size") or (None if gated else 4 * recipe.model.hidden_size),
        "gated_feed_forward": on_off(gated),
        "grouped_queries": on_off(grouped),
        "kv_groups": own.get("num-query-groups") if grouped else None,
        "optimizer": "adam",
        "parameters_of_rank": parameters,
        "vocab_size": vocabulary(recipe.model),
    }
    return asked if context == 1 else {**asked, "micro_batches": None}
