"""Expectations on ranks of our own beyond the recipe's own fields."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """Knowledge of a recipe's engine.

    Attributes:
        layers: of the model that is trained, or of the first of several; None where the engine counts none.
        parameters: of one copy of all that is trained; None where the engine counts none.
        first_loss: least and most that it is before anything was learned; None where the engine does not know.
        least_loss: below which no model can be on this data, in the mean of a step; None where it is not known.
        spread: allowed distance of the mean losses of two ranks in one step by the difference of their data alone, nat;
            None where the engine does not know.
        one_model: true if all ranks train one model, so that each has the norm of the whole gradient.
        own_losses: true if each rank logs the loss of its own sequences; else all log the mean.
    """

    layers: int | None = None
    parameters: int | None = None
    first_loss: tuple[float, float] | None = None
    least_loss: float | None = None
    spread: float | None = None
    one_model: bool = False
    own_losses: bool = True
