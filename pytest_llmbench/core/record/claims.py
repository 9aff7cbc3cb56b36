"""Claims: settings of its training that a run reports, to be compared with the recipe; and what its engine expects."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pytest_llmbench.core.schema import Strict

ClaimName = Literal[
    "layers", "hidden_size", "attention_heads", "sequence_length", "global_batch_size", "micro_batch_size", "tensor",
    "pipeline", "precision", "fp16", "bf16", "world_size", "steps", "micro_batches", "feed_forward_size",
    "gated_feed_forward", "grouped_queries", "kv_groups", "experts", "context_parallel", "positions", "vocab_size",
    "sharding", "sequence_parallel", "activation_checkpointing", "optimizer", "parameters_of_rank",
    "frozen_parameters", "lora", "dropout", "gradient_precision", "initial_weights", "parameters",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Span:
    """Range of a count that is not fully known, such as the size of a padded vocabulary."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:.10g}" if self.low == self.high else f"{self.low:.10g} to {self.high:.10g}"


# The expected value of a claim: one value, a span, one span for each pipeline stage, or None if it is unknown.
Asked = int | float | str | Span | tuple[Span, ...] | None
Asks = Mapping[ClaimName, Asked]


def on_off(switch: object) -> str:
    """A switch in the words of a claim."""
    return "on" if switch else "off"


class Claim(Strict):
    """One setting as a log line prints it, or as a rank counted it from its tensors."""

    name: ClaimName
    """Name of the setting."""
    value: int | float | str
    """A number, or a word such as `bf16`; a switch is `on` or `off`."""
    where: str
    """`file:line` or `rank N`, for messages."""
    stage: int = 0
    """Pipeline stage that the claim `parameters_of_rank` is about."""

    @property
    def log(self) -> str | None:
        """The file that it is from; None for a claim of a rank."""
        name, colon, _ = self.where.partition(":")
        return name if colon else None


class Setting(Strict):
    """One setting as a log prints it, in the framework's own words."""

    name: str
    """Name of the setting."""
    value: str
    """Its value."""
    where: str
    """`file:line`, for messages."""
    compared: bool
    """Whether a claim with its value is compared with the recipe."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingsCheck:
    """Comparison of the settings that a log prints with the recipe: each difference, and a sentence on all settings."""

    differ: tuple[str, ...] = ()
    summary: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """Expectations of a recipe's engine; None where the engine leaves one open."""

    layers: int | None = None  # of the model that is trained, or of the first of several
    parameters: int | None = None  # of one copy of all that is trained
    first_loss: tuple[float, float] | None = None  # least and most before anything was learned
    least_loss: float | None = None  # lower limit of the mean loss of a step on this data
    spread: float | None = None  # distance of two ranks' mean losses that the difference of their data allows, nat
    one_model: bool = False  # true if all ranks train one model, so that each has the norm of the whole gradient
    own_losses: bool = True  # true if each rank logs the loss of its own sequences; else all log the mean
