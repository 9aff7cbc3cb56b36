"""Command line of DeepSpeed-Chat: arguments of `main.py` and `deepspeed`, and environment of ranks on other nodes."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.claims import Span
from pytest_llmbench.engines.base import Place, options_of
from pytest_llmbench.engines.deepspeed_chat.log import lora
from pytest_llmbench.engines.external import ProgramOptions, fill_arguments
from pytest_llmbench.engines.overrides import Rules, Same, rules_of_given
from pytest_llmbench.judging.flops import parameters

TRAINING = "applications/DeepSpeed-Chat/training"
MAIN = {
    1: f"{TRAINING}/step1_supervised_finetuning/main.py",
    2: f"{TRAINING}/step2_reward_model_finetuning/main.py",
    3: f"{TRAINING}/step3_rlhf_finetuning/main.py",
}
_ZERO_STAGE = {"none": 0, "optimizer": 1, "gradients": 2, "full": 3}
# DeepSpeed's launcher starts the ranks of other nodes with pdsh, which passes on only listed variables.
_TAKEN_ALONG = ("PATH", "LD_LIBRARY_PATH", "PROJECT_PATH", "USER")
_FAMILIES = ("CUDA_", "DS_", "FI_", "GLOO_", "HF_", "MAX_JOBS", "NCCL_", "OMP_", "OMPI_", "PYTORCH_", "TORCH_", "UCX_")
_WITHHELD = "[^=]*(TOKEN|KEY|SECRET|PASSW)"

_FIELDS = {
    "per_device_train_batch_size": "micro_batch_size",
    "per_device_mini_train_batch_size": "micro_batch_size",
    "lr_scheduler_type": "optimizer.decay",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "max_steps": "steps",
    "max_seq_len": "sequence_length",
    "learning_rate": "optimizer.learning_rate",
    "actor_learning_rate": "optimizer.learning_rate",
    "weight_decay": "optimizer.weight_decay",
    "zero_stage": "parallelism.sharding",
    "actor_zero_stage": "parallelism.sharding",
    "gradient_checkpointing": "parallelism.activation_checkpointing",
    "actor_gradient_checkpointing": "parallelism.activation_checkpointing",
    "disable_dropout": "model.dropout",
    "disable_actor_dropout": "model.dropout",
    "num_warmup_steps": "optimizer.warmup_steps",
}
# What a recipe may have otherwise without another training, or for one of step 3's models alone.
_FREE = {"print_loss", "critic_learning_rate", "critic_zero_stage", "max_prompt_seq_len", "max_answer_seq_len"}


class DeepSpeedChatOptions(ProgramOptions):
    """Options of this engine."""

    step: Literal[1, 2, 3]
    """Training step: next-token fine-tuning, a reward model on pairs of answers, or an actor and a critic."""
    through: str | None = None
    """Script to start instead of `main.py`, whose path is in the variable `MAIN`: for a machine without a GPU."""
    launcher_args: tuple[str, ...] = ()
    """Arguments of the launcher `deepspeed`."""


def launcher_args(options: DeepSpeedChatOptions, topology: Topology, place: Place) -> tuple[str, ...]:
    """Arguments of `deepspeed` in addition to the hostfile. Raises ConfigError if it cannot reach the other nodes."""
    extra = (*options.launcher_args, *place.environment.launcher_args)
    if topology.nodes > 1 and place.environment.container is not None and "--ssh_port" not in " ".join(extra):
        raise ConfigError(
            "deepspeed reaches the other nodes by ssh, which ends outside of the image it runs in: give "
            "--nodes-per-run 1, or images with a server of their own and `launcher_args: [--ssh_port, PORT]` in the "
            "environment of engine deepspeed_chat"
        )
    # Without an address it looks up the first node by ssh, even if that is this node, which may refuse itself.
    alone = ("--no_ssh_check",) if topology.nodes == 1 else ()
    meeting = ("--master_addr", "$LLMBENCH_FIRST_HOST", "--master_port", "$LLMBENCH_PORT")
    return (*alone, *meeting, *options.launcher_args)


def variables(place: Place, env: Iterable[str]) -> str:
    """Build the shell line that lists the variables, as NAME=VALUE, for ranks of other nodes, without secrets."""
    names = dict.fromkeys((*_TAKEN_ALONG, *place.environment.env, *env))
    wanted = "|".join((*(f"{name}=" for name in names if not name.startswith(_FAMILIES)), *_FAMILIES))
    secret = "|".join((*(f"{name}=" for name in place.environment.secrets), _WITHHELD))
    return f"env | grep -E '^({wanted})' | grep -vE '^({secret})'"


def arguments(recipe: Recipe, place: Place) -> dict[str, Any]:
    """Return the arguments of `main.py`: those of the recipe's fields, overridden by its options.

    Raises ConfigError if the environment lacks a name.
    """
    options, where = options_of(recipe, DeepSpeedChatOptions), f"recipe {recipe.name}: options"
    return {**_given(recipe, options.step), **fill_arguments(options.arguments, place, where)}


# Settings of DeepSpeed that leave out layers, tokens or parts of the attention, or keep weights in half precision.
_USUAL: Mapping[str, Any] = dict.fromkeys(
    ("amp_enabled", "curriculum_enabled_legacy", "data_efficiency_enabled", "fp16_master_weights_and_gradients",
     "pld_enabled", "sparse_attention"),
)  # fmt: skip


def rules(recipe: Recipe) -> Rules:
    """Return the rule of each argument. Only those of recipe fields count, because the FLOPs are unknown."""
    options = options_of(recipe, DeepSpeedChatOptions)
    same = rules_of_given(_given(recipe, options.step), _FIELDS)
    same = {name: rule for name, rule in same.items() if name not in _FREE}
    same["dtype"] = Same(field="precision", allowed=(recipe.precision,))
    return Rules(own=options.arguments, same=same, usual=_USUAL)


def parameters_of(recipe: Recipe) -> Span:
    """Count the parameters of the model of step 1 or 2: its token embedding may be half as wide (OPT-350m).

    With LoRA each of a layer's six matrices has two more, of that rank.
    """
    model, rank = recipe.model, options_of(recipe, DeepSpeedChatOptions).arguments.get("lora_dim") or 0
    table = model.vocab_size * model.hidden_size
    whole = parameters(model, recipe.sequence_length)
    lora = 18 * model.layers * model.hidden_size * rank if isinstance(rank, int) else 0
    # OPT's position embeddings are 2050, whatever the sequences' length.
    return Span(whole - 0.55 * table, whole + lora + 0.01 * table + 2050 * model.hidden_size)


def lora_of(recipe: Recipe) -> str:
    """Describe in a claim which weights the arguments of step 1 or 2 train."""
    given = options_of(recipe, DeepSpeedChatOptions).arguments
    return lora(given.get("lora_dim") or 0, alone=bool(given.get("only_optimize_lora")))


def _given(recipe: Recipe, step: int) -> dict[str, Any]:
    spread, optimizer = recipe.parallelism, recipe.optimizer
    stage, checkpoints = _ZERO_STAGE[spread.sharding], spread.activation_checkpointing == "full"
    given: dict[str, Any] = {
        "per_device_train_batch_size": recipe.micro_batch_size,
        "lr_scheduler_type": optimizer.decay,
        "gradient_accumulation_steps": 1,
        "deepspeed": True,
        "max_steps": timed_steps(recipe),
    }
    if step == 3:
        half = recipe.sequence_length // 2
        return given | {
            "per_device_mini_train_batch_size": recipe.micro_batch_size,
            "max_prompt_seq_len": recipe.sequence_length - half,
            "max_answer_seq_len": half,
            "actor_learning_rate": optimizer.learning_rate,
            "critic_learning_rate": optimizer.learning_rate,
            "actor_zero_stage": stage,
            "critic_zero_stage": stage,
            "actor_gradient_checkpointing": checkpoints,
            "disable_actor_dropout": recipe.model.dropout == 0,
            "num_warmup_steps": optimizer.warmup_steps,
        }
    return given | {
        "max_seq_len": recipe.sequence_length,
        "learning_rate": optimizer.learning_rate,
        "weight_decay": optimizer.weight_decay,
        "zero_stage": stage,
        "gradient_checkpointing": checkpoints,
        "disable_dropout": recipe.model.dropout == 0,
        # Every rank prints the loss at every step, which costs time, so it is on only at the scale without a speed.
        "print_loss": step == 1 and recipe.scale == "smoke",
        "num_warmup_steps": recipe.steps - timed_steps(recipe),
    }


def timed_steps(recipe: Recipe) -> int:
    """Return `max_steps`: in steps 1 and 2 the optimizer's warm-up comes before these, untimed."""
    step = options_of(recipe, DeepSpeedChatOptions).step
    return recipe.steps if step == 3 else recipe.steps - recipe.optimizer.warmup_steps
