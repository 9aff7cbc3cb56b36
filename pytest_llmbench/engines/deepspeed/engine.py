"""DeepSpeed: OPT of transformers under ZeRO 0 to 3, trained by `workloads.deepspeed.run` on every rank."""

import math
from collections.abc import Iterator
from dataclasses import replace

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.expected import Expected
from pytest_llmbench.core.recipe.recipes import ModelShape, Parallelism, Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.schema import Strict, validate
from pytest_llmbench.engines.base import options_of
from pytest_llmbench.engines.deepspeed.options import DeepSpeedOptions
from pytest_llmbench.engines.in_process import InProcess
from pytest_llmbench.engines.overrides import batch_problem, precision_problem
from pytest_llmbench.judging.flops import parameters
from pytest_llmbench.judging.language_losses import expected_of

# What rounding makes of ln 2.
_GUESS_NAT = 0.02


class DeepSpeedEngine(InProcess):
    """See `base.Engine`."""

    name = "deepspeed"
    entry = "pytest_llmbench.engines.deepspeed.ranks.run:train"
    packages = {"torch": "PyTorch", "deepspeed": "DeepSpeed", "transformers": "transformers"}  # noqa: RUF012 - as is
    extra = "deepspeed"
    options: type[Strict] = DeepSpeedOptions
    ends_early = True

    def uncounted(self, recipe: Recipe) -> str | None:
        """Say why not all weights are trained on every token: with LoRA, on pairs, or on what the model wrote."""
        options = options_of(recipe, DeepSpeedOptions)
        if options.step == "sft" and options.lora_dim == 0:
            return None
        how = f"options.step {options.step}" if options.step != "sft" else f"options.lora_dim {options.lora_dim}"
        return f"with {how} a step does not train all weights on every token"

    def expected(self, recipe: Recipe, topology: Topology) -> Expected:
        """Say what its ranks are to show of this training.

        Scorers start from zero: each of two answers is as good as the other, and the loss is ln 2. The first loss of a
            critic depends on the scores.
        """
        options = options_of(recipe, DeepSpeedOptions)
        language = _weights(recipe.model, recipe)
        if options.step == "sft":
            return expected_of(recipe, topology, parameters=language, initial_std=0.02)
        plain = Expected(layers=recipe.model.layers, least_loss=0.0, one_model=True)
        if options.step == "reward":
            number, guess = language + recipe.model.hidden_size + 1, math.log(2)
            return replace(plain, parameters=number, first_loss=(guess - _GUESS_NAT, guess + _GUESS_NAT))
        critic = options.critic or recipe.model
        return replace(plain, parameters=language + _weights(critic, recipe) + critic.hidden_size + 1)

    def problems(self, recipe: Recipe, topology: Topology) -> Iterator[str]:
        """Yield every reason why this recipe cannot run on this topology."""
        yield from batch_problem(recipe, topology)
        yield from precision_problem(recipe, topology, ("fp32", "bf16", "fp16"))
        where = f"recipe {recipe.name}"
        yield from (f"{where}: {problem}" for problem in _unsupported(recipe))
        try:
            options = validate(DeepSpeedOptions, recipe.options, f"{where}: options")
        except ConfigError as error:
            yield from str(error).splitlines()
            return
        yield from (f"{where}: {problem}" for problem in _contradictions(recipe, options))


def _weights(model: ModelShape, recipe: Recipe) -> int:
    """The parameters of OPT's body with its tied output: transformers keeps two positions that no token has."""
    return parameters(model, recipe.sequence_length) + 2 * model.hidden_size


def _unsupported(recipe: Recipe) -> Iterator[str]:
    asked, plain = recipe.parallelism, Parallelism()
    for field in ("tensor", "pipeline", "virtual_pipeline", "sequence"):
        if getattr(asked, field) != getattr(plain, field):
            yield f"engine deepspeed has no {field} parallelism; engine megatron_core has"
    if asked.activation_checkpointing == "selective":
        yield "engine deepspeed checkpoints none or full, not selective"
    if recipe.optimizer.decay != "linear":
        yield "engine deepspeed decays the learning rate linearly only"
    if recipe.precision == "fp16" and asked.sharding == "none":
        yield "DeepSpeed trains whole models in fp16 without scaling their loss: take bf16, or sharding: optimizer"
    if recipe.compile and asked.sharding == "full":
        yield "engine deepspeed cannot compile a layer whose weights come and go (sharding full): set compile: false"


def _contradictions(recipe: Recipe, options: DeepSpeedOptions) -> Iterator[str]:
    shapes = {"model": recipe.model, "options.critic": options.critic or recipe.model}
    for name, shape in shapes.items():
        if shape.positions != "learned":
            yield f"{name}: OPT has learned positions only; engine megatron_core has rope"
    if shapes["options.critic"].vocab_size != recipe.model.vocab_size:
        yield (
            f"options.critic: scores the model's tokens, so its vocab_size must be {recipe.model.vocab_size}, "
            f"not {shapes['options.critic'].vocab_size}"
        )
    if options.answer_of(recipe.sequence_length) >= recipe.sequence_length:
        yield f"options.answer_length: leaves no prompt in a sequence of {recipe.sequence_length} tokens"
    if options.step == "ppo" and recipe.compile:
        yield "engine deepspeed cannot compile for answers, which grow by a token at a time: set compile: false"
    if options.step == "reward" and recipe.micro_batch_size % 2:
        yield f"micro_batch_size {recipe.micro_batch_size} is odd; step reward counts sequences, two to a pair"


ENGINE = DeepSpeedEngine()
