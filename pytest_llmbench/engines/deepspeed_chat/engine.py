"""DeepSpeed-Chat's three steps, as Lambda's fork runs them: one `deepspeed` on the first node, which prints its speed.

The fork's `main.py` prints its speed once, at its end, and newer versions of DeepSpeed leave out the steps. So the
speed of the whole run is compared with the logged steps and the recipe.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any, Literal

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.claims import Asks, ClaimName, Span
from pytest_llmbench.core.record.series import Step, StepSeries
from pytest_llmbench.engines.base import Command, Place, Script, options_of
from pytest_llmbench.engines.deepspeed_chat import eval_batch
from pytest_llmbench.engines.deepspeed_chat.log import READER, lora
from pytest_llmbench.engines.external import External, ProgramOptions, check_training, fill, fill_arguments, flags
from pytest_llmbench.engines.overrides import Rules, Same, rules_of_given
from pytest_llmbench.judging import agreement
from pytest_llmbench.judging.findings import too_many_skipped
from pytest_llmbench.judging.flops import parameters
from pytest_llmbench.judging.statistics import Measurement, Statistic, rate

_TRAINING = "applications/DeepSpeed-Chat/training"
_MAIN = {
    1: f"{_TRAINING}/step1_supervised_finetuning/main.py",
    2: f"{_TRAINING}/step2_reward_model_finetuning/main.py",
    3: f"{_TRAINING}/step3_rlhf_finetuning/main.py",
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
# Settings that may differ from the recipe: they do not change the training, or only one of step 3's models.
_FREE = {"print_loss", "critic_learning_rate", "critic_zero_stage", "max_prompt_seq_len", "max_answer_seq_len"}
# Settings of DeepSpeed that leave out layers, tokens or parts of the attention, or keep weights in half precision.
_USUAL: Mapping[str, Any] = dict.fromkeys(
    ("amp_enabled", "curriculum_enabled_legacy", "data_efficiency_enabled", "fp16_master_weights_and_gradients",
     "pld_enabled", "sparse_attention"),
)  # fmt: skip


class DeepSpeedChatOptions(ProgramOptions):
    """Options of this engine."""

    step: Literal[1, 2, 3]
    """Training step: next-token fine-tuning, a reward model on pairs of answers, or an actor and a critic."""
    through: str | None = None
    """Script to start instead of `main.py`, whose path is in the variable `MAIN`: for a machine without a GPU."""
    launcher_args: tuple[str, ...] = ()
    """Arguments of the launcher `deepspeed`."""


# Execution time and throughput are printed with four decimals.
_ROUNDING = 0.5e-4
# How far a step's rate may be from its latency, by the way in which both are computed.
_CLOCKS = 1e-3
_SHORT = "its epochs ended before its steps; give more of them (num_train_epochs), or fewer steps"
_OF_ONE_MODEL: tuple[ClaimName, ...] = (
    "activation_checkpointing", "bf16", "fp16", "global_batch_size", "micro_batch_size", "lora", "parameters_of_rank",
    "sequence_length", "sharding",
)  # fmt: skip


def _counted_work(m: Measurement) -> float | None:
    seconds, rate = m.totals.get("execution_time_s"), m.totals.get("throughput_samples_per_s")
    if seconds is None or rate is None:
        return None
    return 100.0 * seconds * rate / (m.recipe.samples_per_step * _timed_steps(m.recipe))


_STATISTICS: Mapping[str, Statistic] = {
    "reported_throughput": rate(
        "samples/s",
        "the line `Throughput:`: batch per device × ranks × timed steps / execution time; the first one counts",
        lambda m: m.totals.get("throughput_samples_per_s"),
        speed="samples_per_s",
    ),
    "counted_work": Statistic(
        unit="%", rule="`Throughput:` × `Execution time:` / (batch of all ranks × timed steps)", compute=_counted_work
    ),
}


class DeepSpeedChat(External):
    """See `base.Engine`."""

    name = "deepspeed_chat"
    proof = "the line `Throughput:`, printed once after the last step"
    options = DeepSpeedChatOptions
    reader = READER
    log_per_run = "*.log"
    statistics = _STATISTICS
    evaluate = staticmethod(eval_batch.evaluate)

    def problems(self, recipe: Recipe, topology: Topology) -> Iterator[str]:
        spread = recipe.parallelism
        if spread.model_parallel_size > 1:
            yield "DeepSpeed-Chat has no tensor or pipeline parallelism"
        if spread.activation_checkpointing == "selective":
            yield "DeepSpeed-Chat checkpoints none or full, not selective"
        if recipe.precision != "fp16":
            yield f"DeepSpeed-Chat trains in fp16, not {recipe.precision}"
        yield from self.arguments(recipe).problems()
        if _timed_steps(recipe) < 1:
            yield f"{recipe.steps} steps leave none to time after optimizer.warmup_steps of them"
        if recipe.samples_per_step != topology.world_size * recipe.micro_batch_size:
            yield (
                f"its steps are micro batches, so that a step has {recipe.micro_batch_size} samples of each of "
                f"{topology.world_size} ranks ({topology}), not {recipe.samples_per_step} in all: give "
                "gradient_accumulation_steps: 1"
            )

    def arguments(self, recipe: Recipe, topology: Topology | None = None) -> Rules:
        """Return the rules. Only those of recipe fields count, because the FLOPs are unknown."""
        options = options_of(recipe, DeepSpeedChatOptions)
        same = rules_of_given(_given(recipe, options.step), _FIELDS)
        same = {name: rule for name, rule in same.items() if name not in _FREE}
        same["dtype"] = Same(field="precision", allowed=(recipe.precision,))
        return Rules(own=options.arguments, same=same, usual=_USUAL)

    def uncounted(self, recipe: Recipe) -> str | None:
        return "DeepSpeed-Chat may train part of the weights, on pairs, or on what the model wrote"

    def asks(self, recipe: Recipe, topology: Topology) -> Asks:
        options = options_of(recipe, DeepSpeedChatOptions)
        if options.step == 3:  # a claim may be about any of its four models
            return dict.fromkeys(_OF_ONE_MODEL)
        rank, alone = options.arguments.get("lora_dim") or 0, bool(options.arguments.get("only_optimize_lora"))
        return {"parameters_of_rank": _parameters(recipe, rank), "lora": lora(rank, alone=alone)}

    def work(self, recipe: Recipe, topology: Topology, place: Place) -> Script:
        """Print the hostfile first, for Lambda's evaluator; then run `deepspeed`."""
        options, where = options_of(recipe, DeepSpeedChatOptions), f"recipe {recipe.name}: options"
        own = fill_arguments(options.arguments, place, where)
        main = fill("{root}/", place, where) + _MAIN[options.step]
        through = None if options.through is None else fill(options.through, place, where)
        head = 'cat "$LLMBENCH_HOSTFILE" && echo'
        commands = [Command(launcher="once", argv=(head,), shell=True, bare=True)]  # noqa: S604 - a script's line
        env = {} if through is None else {"MAIN": main}
        if topology.nodes > 1:
            file = str(place.folder / "deepspeed_env")
            shell = f"{_variables(place, env)} > {shlex.quote(file)}"
            commands.append(Command(launcher="once", argv=(shell,), shell=True, env=env))  # noqa: S604 - a script's line
            env = {**env, "DS_ENV_FILE": file}
        train = Command(
            launcher="deepspeed",
            argv=(through or main, *flags({**_given(recipe, options.step), **own})),
            launcher_args=_launcher_args(options, topology, place),
            env=env,
            folder=f"{place.environment.root}/{_TRAINING}",
        )
        return Script(commands=(*commands, train), notes=options.notes)

    def read(self, folder: Path, recipe: Recipe) -> StepSeries:
        series, timed = super().read(folder, recipe), _timed_steps(recipe)
        steps = series.totals.get("execution_steps", timed)
        short = None if steps >= timed else f"it timed {steps:g} steps where the recipe has {timed}: {_SHORT}"
        return series.model_copy(update={"short": short})

    def tokens_of(self, step: Step, recipe: Recipe) -> int | None:
        """Count `max_seq_len` tokens, padding included, to a sample of step 1; None for a pair or an episode."""
        return super().tokens_of(step, recipe) if options_of(recipe, DeepSpeedChatOptions).step == 1 else None

    def doubts(self, recipe: Recipe, topology: Topology, series: StepSeries) -> Iterator[str]:
        names = ("execution_time_s", "execution_steps", "throughput_samples_per_s")
        seconds, steps, rate = (series.totals.get(name) for name in names)
        if seconds is None or steps is None or rate is None:
            yield "its log has no line `Execution time:` followed by `Throughput:`: its speed is unknown"
            return
        timed = _timed_steps(recipe)
        if steps != timed:
            yield f"it timed {steps:g} steps where the recipe has {timed}"
        samples = recipe.micro_batch_size * topology.world_size * steps
        if abs(rate * seconds - samples) > _ROUNDING * (rate + seconds) + 1e-9 * samples:
            yield (
                f"{rate:g} samples/s over {seconds:g} s are {rate * seconds:.6g} samples, where {steps:g} steps of "
                f"{recipe.micro_batch_size} on each of {topology.world_size} ranks are {samples:g}"
            )
        yield from check_training(self, recipe, topology, series, untrained=False)
        timed_lines = [step for step in series.steps if step.step >= recipe.steps - timed]
        yield from agreement.check_span(timed_lines, topology, seconds)
        yield from agreement.check_pace(series, topology)
        yield from agreement.check_product(series.steps, "Batch Size", ("Latency", "Samples/sec"), lambda _: _CLOCKS)
        yield from too_many_skipped(recipe, series)
        # Swapped numbers have the same product, so compare with the times of logged steps.
        logged = [step.seconds for step in series.steps if step.seconds is not None]
        due = median(logged) * steps if logged else seconds
        if not due / 2 <= seconds <= due * 2:
            yield f"{steps:g} steps in {seconds:g} s, where the steps it logged take {median(logged):.3g} s each"


def _launcher_args(options: DeepSpeedChatOptions, topology: Topology, place: Place) -> tuple[str, ...]:
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


def _variables(place: Place, env: Iterable[str]) -> str:
    """Build the shell line that lists the variables, as NAME=VALUE, for ranks of other nodes, without secrets."""
    names = dict.fromkeys((*_TAKEN_ALONG, *place.environment.env, *env))
    wanted = "|".join((*(f"{name}=" for name in names if not name.startswith(_FAMILIES)), *_FAMILIES))
    secret = "|".join((*(f"{name}=" for name in place.environment.secrets), _WITHHELD))
    return f"env | grep -E '^({wanted})' | grep -vE '^({secret})'"


def _parameters(recipe: Recipe, rank: object) -> Span:
    """Count the parameters of the model of step 1 or 2: its token embedding may be half as wide (OPT-350m).

    With LoRA each of a layer's six matrices has two more, of that rank.
    """
    model = recipe.model
    table = model.vocab_size * model.hidden_size
    whole = parameters(model, recipe.sequence_length)
    more = 18 * model.layers * model.hidden_size * rank if isinstance(rank, int) else 0
    # OPT has 2,050 position embeddings, whatever the length of the sequences.
    return Span(whole - 0.55 * table, whole + more + 0.01 * table + 2050 * model.hidden_size)


def _given(recipe: Recipe, step: int) -> dict[str, Any]:
    spread, optimizer = recipe.parallelism, recipe.optimizer
    stage, checkpoints = _ZERO_STAGE[spread.sharding], spread.activation_checkpointing == "full"
    given: dict[str, Any] = {
        "per_device_train_batch_size": recipe.micro_batch_size,
        "lr_scheduler_type": optimizer.decay,
        "gradient_accumulation_steps": 1,
        "deepspeed": True,
        "max_steps": _timed_steps(recipe),
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
        "num_warmup_steps": recipe.steps - _timed_steps(recipe),
    }


def _timed_steps(recipe: Recipe) -> int:
    """Return `max_steps`: in steps 1 and 2 the optimizer's warm-up comes before these, untimed."""
    step = options_of(recipe, DeepSpeedChatOptions).step
    return recipe.steps if step == 3 else recipe.steps - recipe.optimizer.warmup_steps


ENGINE = DeepSpeedChat()
