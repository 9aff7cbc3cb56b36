"""The arguments of metaseq's training program and of its launcher: the legal ones in addition to a recipe."""

from collections.abc import Iterator, Mapping
from typing import Any

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.engines.overrides import Rules, Same, given

_FIELDS = {
    "model-parallel-size": "parallelism.tensor",
    "dict-size": "model.vocab_size",
    "decoder-layers": "model.layers",
    "decoder-embed-dim": "model.hidden_size",
    "decoder-attention-heads": "model.attention_heads",
    "dropout": "model.dropout",
    "attention-dropout": "model.dropout",
    "tokens-per-sample": "sequence_length",
    "batch-size": "micro_batch_size",
    "update-freq": "global_batch_size",
    "adam-betas": "optimizer.betas",
    "adam-eps": "optimizer.eps",
    "weight-decay": "optimizer.weight_decay",
    "clip-norm": "optimizer.clip_grad_norm",
    "lr": "optimizer.learning_rate",
    "end-learning-rate": "optimizer.learning_rate",
    "warmup-updates": "optimizer.warmup_steps",
    "total-num-update": "steps",
    "max-update": "steps",
}
_REFUSED: Mapping[str, str] = {
    "max-tokens": "makes batches of tokens, not of sequences",
    "skip-batches": "leaves batches out",
    "max-epoch": "may end before the recipe's last step",
    "restore-file": "goes on with another run",
}
_HARMLESS = frozenset({
    "activation-fn", "arch", "criterion", "decoder-learned-pos", "disable-validation", "distributed-backend",
    "distributed-port", "empty-cache-freq", "full-megatron-init", "log-interval", "lr-scheduler", "megatron-init-sigma",
    "no-emb-dropout", "no-epoch-checkpoints", "no-scale-embedding", "no-wandb", "num-workers", "profile", "python",
    "required-batch-size-multiple", "save-dir", "seed", "share-decoder-input-output-embed", "task", "train-subset",
    "use-sharded-state", "valid-subset",
})  # fmt: skip
_FAMILIES = ("clip-norm-type", "fp16-", "loss-scale", "min-loss-scale", "save-interval-", "tensorboard-", "wandb-")

# Layers, hidden size and attention heads that `opt-baselines` has for each `--model-size`.
_SIZES: Mapping[str, tuple[int, int, int]] = {
    "8m": (4, 128, 2), "8m_mp1": (4, 128, 2), "125m": (12, 768, 12), "350m": (24, 1024, 16),
    "760m": (24, 1536, 16), "1.3b": (24, 2048, 32), "2.7b": (32, 2560, 32), "6.7b": (32, 4096, 32),
    "13b": (40, 5120, 40), "30b": (48, 7168, 56), "66b": (64, 9216, 72), "175b": (96, 12288, 96),
}  # fmt: skip


def rules(recipe: Recipe, arguments: Mapping[str, Any], own: Mapping[str, Any]) -> Rules:
    """Return the rule of each argument; `arguments` are those that the recipe's fields give."""
    precision, sharded = recipe.precision, recipe.parallelism.sharding in {"gradients", "full"}
    backends = ("fully_sharded",) if sharded else ("pytorch_ddp", "legacy_ddp", "c10d", "no_c10d")
    checkpoints = recipe.parallelism.activation_checkpointing == "full"
    other_names = {
        "bf16": Same(field="precision", allowed=(precision == "bf16",)),
        "fp16": Same(field="precision", allowed=(precision == "fp16",)),
        "memory-efficient-fp16": Same(field="precision", allowed=(precision == "fp16", False)),
        "ddp-backend": Same(field="parallelism.sharding", allowed=backends),
        "checkpoint-activations": Same(field="parallelism.activation_checkpointing", allowed=(checkpoints,)),
    }
    wide = own.get("decoder-ffn-embed-dim")  # without a field: with another value, nobody knows what a step computes
    usual = {"decoder-ffn-embed-dim"} if wide == 4 * recipe.model.hidden_size else set()
    same = {name: rule for name, rule in given(arguments, _FIELDS).items() if name != "decoder-ffn-embed-dim"}
    known = _HARMLESS | _FIELDS.keys() | usual  # of what no rule is here, the program is not given by us
    return Rules(same={**same, **other_names}, refused=_REFUSED, harmless=known, families=_FAMILIES)


def size_problem(recipe: Recipe, size: str) -> Iterator[str]:
    """Yield why the launcher would train another model than the recipe describes."""
    model = recipe.model
    own = (model.layers, model.hidden_size, model.attention_heads)
    if size in _SIZES and _SIZES[size] != own:
        layers, hidden, heads = _SIZES[size]
        yield (
            f"recipe {recipe.name}: options.model_size {size} has layers {layers}, hidden_size {hidden} and "
            f"attention_heads {heads} in opt-baselines; model says {own[0]}, {own[1]} and {own[2]}: make them agree"
        )
