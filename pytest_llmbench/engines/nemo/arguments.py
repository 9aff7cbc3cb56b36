"""Overrides of NeMo's configuration: the legal ones in addition to a recipe."""

from collections.abc import Mapping
from typing import Any

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.engines.overrides import Rules, Same

_PRECISIONS: Mapping[str, tuple[Any, ...]] = {
    "fp32": (32, "32-true"),
    "bf16": ("bf16", "bf16-mixed"),
    "fp16": (16, "16-mixed"),
}
_REFUSED: Mapping[str, str] = {
    "model.rampup_batch_size": "has smaller batches at first",
    "trainer.accumulate_grad_batches": "makes several steps one",
    "trainer.limit_train_batches": "may end before the recipe's last step",
    "trainer.max_time": "may end before the recipe's last step",
    "trainer.max_epochs": "may end before the recipe's last step",
}
_HARMLESS = frozenset({
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


def plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Name overrides as in the model's own configuration, which the launcher calls `training`."""
    return {name.lstrip("+").removeprefix("training."): value for name, value in arguments.items()}


def rules(recipe: Recipe, own: Mapping[str, Any]) -> Rules:
    """Return the rule of each override; `own` are those of the recipe's options, by their `plain` names."""
    model, layout, optimizer = recipe.model, recipe.parallelism, recipe.optimizer
    length, how = recipe.sequence_length, layout.activation_checkpointing
    sharded = layout.sharding == "optimizer"
    fields: dict[str, tuple[str, Any]] = {
        "model.num_layers": ("model.layers", model.layers),
        "model.hidden_size": ("model.hidden_size", model.hidden_size),
        "model.num_attention_heads": ("model.attention_heads", model.attention_heads),
        "model.encoder_seq_length": ("sequence_length", length),
        "model.data.seq_length": ("sequence_length", length),
        "model.micro_batch_size": ("micro_batch_size", recipe.micro_batch_size),
        "model.global_batch_size": ("global_batch_size", recipe.global_batch_size),
        "model.tensor_model_parallel_size": ("parallelism.tensor", layout.tensor),
        "model.pipeline_model_parallel_size": ("parallelism.pipeline", layout.pipeline),
        "model.virtual_pipeline_model_parallel_size": ("parallelism.virtual_pipeline", layout.virtual_pipeline),
        "model.sequence_parallel": ("parallelism.sequence", layout.sequence),
        "model.hidden_dropout": ("model.dropout", model.dropout),
        "model.attention_dropout": ("model.dropout", model.dropout),
        "model.optim.lr": ("optimizer.learning_rate", optimizer.learning_rate),
        "model.optim.weight_decay": ("optimizer.weight_decay", optimizer.weight_decay),
        "model.optim.sched.warmup_steps": ("optimizer.warmup_steps", optimizer.warmup_steps),
        "trainer.max_steps": ("steps", recipe.steps),
        "trainer.gradient_clip_val": ("optimizer.clip_grad_norm", optimizer.clip_grad_norm),
    }
    same = {name: Same(field=field, allowed=(value,)) for name, (field, value) in fields.items()}
    same["trainer.precision"] = Same(field="precision", allowed=_PRECISIONS[recipe.precision])
    granularity = ("full", None) if how == "none" else (how,)  # of no layers, full is none
    same["model.activations_checkpoint_granularity"] = Same(field=_CHECKPOINTING, allowed=granularity)
    if how == "none":
        same["model.activations_checkpoint_num_layers"] = Same(field=_CHECKPOINTING, allowed=(0, None))
    names = ("distributed_fused_adam",) if sharded else ("fused_adam", "adam", "adamw")
    same["model.optim.name"] = Same(field="parallelism.sharding", allowed=names)
    usual = {"model.ffn_hidden_size": 4 * model.hidden_size, "model.kv_channels": None}
    as_usual = {name for name, value in usual.items() if own.get(name) == value}
    return Rules(same=same, refused=_REFUSED, harmless=_HARMLESS | as_usual, families=_FAMILIES)


_CHECKPOINTING = "parallelism.activation_checkpointing"
