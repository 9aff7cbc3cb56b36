"""A recipe's `options` for engine deepspeed: the engine checks them, its ranks obey them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from pytest_llmbench.core.recipe.recipes import ModelShape
from pytest_llmbench.core.schema import Strict

Share = Annotated[float, Field(ge=0, le=1)]


class PpoOptions(Strict):
    """Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347), one update per generated batch.

    Attributes:
        clip: largest change of the ratio of new to old probabilities from 1, and of a value from its old one.
        kl_coefficient: cost of one nat of divergence from the reference.
        discount: weight of the next token's value.
        gae_lambda: weight of later rewards in an advantage.
        critic_learning_rate: peak of the critic's; absent, the actor's.
    """

    clip: PositiveFloat = 0.2
    kl_coefficient: Annotated[float, Field(ge=0)] = 0.1
    discount: Share = 1.0
    gae_lambda: Share = 0.95
    critic_learning_rate: PositiveFloat | None = None


class DeepSpeedOptions(Strict):
    """Options of engine deepspeed.

    Attributes:
        step: train on the next token; a scorer of answers on pairs of them; an actor on the scores of what it
            generates.
        lora_dim: rank of the updates that are trained instead of the weights (for `ppo`, of the actor); 0 for none.
        lora_modules: the linear layers with this in their name get them.
        answer_length: tokens at the end of a sequence that answer those before them; absent, half of it. Not for
            `sft`.
        critic: for `ppo`, the model of critic and scorer; by default the actor's.
        ppo: for `ppo`, the algorithm.
        gather_to_generate: for `ppo` with sharding `full`: hold the whole actor on every rank while it generates.
        loss_scale: with precision `fp16`; it is fixed, so a step that overflows is an error.
    """

    step: Literal["sft", "reward", "ppo"]
    lora_dim: Annotated[int, Field(ge=0)] = 0
    lora_modules: str = "decoder.layers."
    answer_length: PositiveInt | None = None
    critic: ModelShape | None = None
    ppo: PpoOptions | None = None
    gather_to_generate: bool = True
    loss_scale: PositiveFloat = 1024.0

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
