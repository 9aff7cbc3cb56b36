"""DeepSpeed-Chat's three steps, as Lambda's fork runs them: one `deepspeed` on the first node, which prints its speed.

The fork's `main.py` prints its speed once, at its end, and newer versions of DeepSpeed leave out the steps. So the
speed of the whole run is compared with the logged steps and the recipe.
"""

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.claims import Asks, ClaimName
from pytest_llmbench.core.record.series import Step, StepSeries
from pytest_llmbench.engines.base import Command, Place, Script, options_of
from pytest_llmbench.engines.deepspeed_chat import eval_batch, stages
from pytest_llmbench.engines.deepspeed_chat.log import READER
from pytest_llmbench.engines.external import External, check_training, fill, flags
from pytest_llmbench.engines.overrides import Rules
from pytest_llmbench.judging import agreement
from pytest_llmbench.judging.findings import too_many_skipped
from pytest_llmbench.judging.statistics import Measurement, Statistic, rate

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
    return 100.0 * seconds * rate / (m.recipe.samples_per_step * stages.timed_steps(m.recipe))


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
    options = stages.DeepSpeedChatOptions
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
        if stages.timed_steps(recipe) < 1:
            yield f"{recipe.steps} steps leave none to time after optimizer.warmup_steps of them"
        if recipe.samples_per_step != topology.world_size * recipe.micro_batch_size:
            yield (
                f"its steps are micro batches, so that a step has {recipe.micro_batch_size} samples of each of "
                f"{topology.world_size} ranks ({topology}), not {recipe.samples_per_step} in all: give "
                "gradient_accumulation_steps: 1"
            )

    def arguments(self, recipe: Recipe, topology: Topology | None = None) -> Rules:
        return stages.rules(recipe)

    def uncounted(self, recipe: Recipe) -> str | None:
        return "DeepSpeed-Chat may train part of the weights, on pairs, or on what the model wrote"

    def asks(self, recipe: Recipe, topology: Topology) -> Asks:
        if options_of(recipe, stages.DeepSpeedChatOptions).step == 3:  # a claim may be about any of its four models
            return dict.fromkeys(_OF_ONE_MODEL)
        return {"parameters_of_rank": stages.parameters_of(recipe), "lora": stages.lora_of(recipe)}

    def work(self, recipe: Recipe, topology: Topology, place: Place) -> Script:
        """Print the hostfile first, for Lambda's evaluator; then run `deepspeed`."""
        options, where = options_of(recipe, stages.DeepSpeedChatOptions), f"recipe {recipe.name}: options"
        main = fill("{root}/", place, where) + stages.MAIN[options.step]
        through = None if options.through is None else fill(options.through, place, where)
        head = 'cat "$LLMBENCH_HOSTFILE" && echo'
        commands = [Command(launcher="once", argv=(head,), shell=True, bare=True)]  # noqa: S604 - a script's line
        env = {} if through is None else {"MAIN": main}
        if topology.nodes > 1:
            file = str(place.folder / "deepspeed_env")
            shell = f"{stages.variables(place, env)} > {shlex.quote(file)}"
            commands.append(Command(launcher="once", argv=(shell,), shell=True, env=env))  # noqa: S604 - a script's line
            env = {**env, "DS_ENV_FILE": file}
        train = Command(
            launcher="deepspeed",
            argv=(through or main, *flags(stages.arguments(recipe, place))),
            launcher_args=stages.launcher_args(options, topology, place),
            env=env,
            folder=f"{place.environment.root}/{stages.TRAINING}",
        )
        return Script(commands=(*commands, train), notes=options.notes)

    def read(self, folder: Path, recipe: Recipe) -> StepSeries:
        series, timed = super().read(folder, recipe), stages.timed_steps(recipe)
        steps = series.totals.get("execution_steps", timed)
        short = None if steps >= timed else f"it timed {steps:g} steps where the recipe has {timed}: {_SHORT}"
        return series.model_copy(update={"short": short})

    def tokens_of(self, step: Step, recipe: Recipe) -> int | None:
        """Count `max_seq_len` tokens, padding included, to a sample of step 1; None for a pair or an episode."""
        return super().tokens_of(step, recipe) if options_of(recipe, stages.DeepSpeedChatOptions).step == 1 else None

    def doubts(self, recipe: Recipe, topology: Topology, series: StepSeries) -> Iterator[str]:
        names = ("execution_time_s", "execution_steps", "throughput_samples_per_s")
        seconds, steps, rate = (series.totals.get(name) for name in names)
        if seconds is None or steps is None or rate is None:
            yield "its log has no line `Execution time:` followed by `Throughput:`: its speed is unknown"
            return
        timed = stages.timed_steps(recipe)
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


ENGINE = DeepSpeedChat()
