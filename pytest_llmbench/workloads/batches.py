"""The micro batches of a training, the next of them made while the device is still at work."""

from __future__ import annotations

import torch

from pytest_llmbench.core.recipes import Recipe
from pytest_llmbench.workloads.tokens import batch, open_tokens

# int64 ids, each [micro batch, sequence_length].
Batch = tuple[torch.Tensor, torch.Tensor]


class Batches:
    """Inputs and targets on the device.

    Within a step the host is ahead of a GPU anyway. At its end it waits, and a GPU that then has to wait for the tokens
    of the next step loses several percent of its time: prepare them before.

    Raises:
        ConfigError: the recipe's data cannot be used; also from `get` and `prepare`, as `Tokens.sequence`.
    """

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        self._data = open_tokens(recipe)
        self._size = recipe.micro_batch_size
        self._device = device
        self._ready: dict[int, Batch] = {}

    def prepare(self, first: int) -> None:
        """Make the micro batch that begins with sequence `first`, which somebody will `get`."""
        self._ready[first] = self._make(first)

    def get(self, first: int) -> Batch:
        """The micro batch that begins with sequence `first`; one made ahead is given away once."""
        return self._ready.pop(first, None) or self._make(first)

    def _make(self, first: int) -> Batch:
        return batch(self._data, first, self._size, self._device)
