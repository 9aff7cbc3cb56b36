"""A recipe's `options` for engine deepspeed."""

from pydantic import PositiveFloat

from pytest_llmbench.core.schema import Strict


class DeepSpeedOptions(Strict):
    """Options of engine deepspeed."""

    loss_scale: PositiveFloat = 1024.0
    """Fixed loss scale with precision `fp16`; a step that overflows is an error."""
