"""A recipe's `options` for engine deepspeed: the engine checks them, its ranks obey them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from pytest_llmbench.core.recipe.recipes import ModelShape
from pytest_llmbench.core.schema import Strict

Share = Annotated[float, Field(ge=0, le=1)]


class PpoOptions(Strict):
    """Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347), one update per generated batch."""

    clip: PositiveFloat = 0.2
    """Largest change of the ratio of new to old probabilities from 1, and of a value from its old one."""
    kl_coefficient: Annotated[float, Field(ge=0)] = 0.1
    """Cost of one nat of divergence from the reference."""
    discount: Share = 1.0
    """Weight of the next token's value."""
    gae_lambda: Share = 0.95
    """Weight of later rewards in an advantage."""
    critic_learning_rate: PositiveFloat | None = None
    """Peak of the critic's; absent, the actor's."""


class DeepSpeedOptions(Strict):
    """Options of engine deepspeed."""

    step: Literal["sft", "reward", "ppo"]
    """Train on the next token; a scorer of answers on pairs of them; an actor on the scores of what it generates."""
    lora_dim: Annotated[int, Field(ge=0)] = 0
    """Rank of the updates that are trained instead of the weights (for `ppo`, of the actor); 0 for none."""
    lora_modules: str = "decoder.layers."
    """The linear layers with this in their name get them."""
    answer_length: PositiveInt | None = None
    """Tokens at the end of a sequence that answer those before them; absent, half of it. Not for `sft`."""
    critic: ModelShape | None = None
    """For `ppo`, the model of critic and scorer; by default the actor's."""
    ppo: PpoOptions | None = None
    """For `ppo`, the algorithm."""
    gather_to_generate: bool = True
    """For `ppo` with sharding `full`: hold the whole actor on every rank while it generates."""
    loss_scale: PositiveFloat = 1024.0
    """With precision `fp16`; it is fixed, so a step that overflows is an error."""

    @model_validator(mode="after")
    def _belong_together(self) -> DeepSpeedOptions:
        for name in ("critic", "ppo"):
            if self.step != "ppo" and getattr(self, name) is not None:
                raise ValueError(f"{name}: for step ppo only, not for {self.step}")
        if self.step == "sft" and self.answer_length is not None:
            raise ValueError("answer_length: for steps reward and ppo only; sft trains on all tokens")
        return self

    def answer_of(self, sequence_length: int) -> int:
        """Tokens of a sequence that are its answer."""
        return self.answer_length or sequence_length // 2
