"""A recipe's `options` for engine unigram."""

from pydantic import NonNegativeFloat

from llmbench_unigram.defaults import DEFAULTS
from pytest_llmbench.core.schema import Strict


class Options(Strict):
    """What only engine unigram knows of a recipe.

    Attributes:
        step_s: how long a rank sleeps in each step: a training that is to go on leaves the machine to others.
        late_s: how much longer the last rank does.
        logged_s: instead, how long each step takes by its log, but for noise of 0.2 %, and for steps that a busy
            machine holds up: the others keep that pace.
        clock_s: how far each rank finds its wall clock set on in the middle of its steps.
        grows_mib: memory that the last rank takes in each step, and keeps.
    """

    step_s: NonNegativeFloat = DEFAULTS["step_s"]
    late_s: NonNegativeFloat = DEFAULTS["late_s"]
    logged_s: NonNegativeFloat | None = DEFAULTS["logged_s"]
    clock_s: float = DEFAULTS["clock_s"]
    grows_mib: NonNegativeFloat = DEFAULTS["grows_mib"]
