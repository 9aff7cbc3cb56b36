"""Claims: what a run says of the training it did, to be compared with the recipe."""

from __future__ import annotations

from typing import Literal

from pytest_llmbench.core.schema import Strict

ClaimName = Literal[
    "layers",
    "hidden_size",
    "attention_heads",
    "sequence_length",
    "global_batch_size",
    "micro_batch_size",
    "tensor",
    "pipeline",
    "precision",
    "world_size",
    "steps",
]


class Claim(Strict):
    """One setting as a log line prints it, or as a rank counted it from its tensors.

    Attributes:
        name: which setting.
        value: a number, or a word such as `bf16`.
        where: `file:line` or `rank N`, for messages.
    """

    name: ClaimName
    value: int | float | str
    where: str

    @property
    def log(self) -> str | None:
        """The file it is from, where it is from one."""
        name, colon, _ = self.where.partition(":")
        return name if colon else None
