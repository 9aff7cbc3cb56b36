"""Expectations on ranks of our own beyond the recipe's own fields."""

from dataclasses import dataclass


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
