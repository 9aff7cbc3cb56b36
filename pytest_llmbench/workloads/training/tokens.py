"""Training data: token sequences that depend on the recipe alone, for any number of ranks."""

import hashlib
from typing import Protocol

import numpy as np
import torch

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.recipes import Recipe, SyntheticTokens, TokenFile


class Tokens(Protocol):
    """A source of sequences."""

    def sequence(self, number: int) -> torch.Tensor:
        """Sequence `number` (from 0) of the run: int64 ids on the CPU, shape [sequence_length + 1]."""


def open_tokens(recipe: Recipe) -> Tokens:
    """Open the data of a recipe. Raises ConfigError if its file is missing, unreadable or too short."""
    if isinstance(recipe.data, TokenFile):
        return FileTokens(recipe.data, recipe)
    return ZipfTokens(recipe.data, recipe)


def batch(tokens: Tokens, first: int, count: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences `first` to `first + count - 1` as inputs and targets, each [count, sequence_length]."""
    rows = torch.stack([tokens.sequence(number) for number in range(first, first + count)])
    if device.type == "cuda":
        rows = rows.pin_memory().to(device, non_blocking=True)
    return rows[:, :-1], rows[:, 1:]


def stable_seed(*parts: int) -> int:
    """Mix integers into a seed of 63 bits, the same on every machine and for every version of Python."""
    digest = hashlib.blake2b(":".join(map(str, parts)).encode("ascii"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


class ZipfTokens:
    """Independent tokens, id k with probability proportional to 1 / (k + 1).

    A model learns the frequencies within a few steps: its loss falls from about ln(vocab_size) towards the entropy of
    this distribution, which is lower by 2.5 nat for 8192 ids and by 3.3 nat for 51196.
    """

    def __init__(self, data: SyntheticTokens, recipe: Recipe) -> None:
        self._seed = data.seed
        self._length = recipe.sequence_length + 1
        weights = 1.0 / torch.arange(1, recipe.model.vocab_size + 1, dtype=torch.float64)
        # The bound of the last id is left out, as rounding may leave the sum of all a little below 1.
        self._bounds = (weights.cumsum(0) / weights.sum())[:-1]

    def sequence(self, number: int) -> torch.Tensor:
        """See `Tokens`."""
        generator = torch.Generator().manual_seed(stable_seed(self._seed, number))
        draws = torch.rand(self._length, dtype=torch.float64, generator=generator)
        return torch.searchsorted(self._bounds, draws, right=True)


class FileTokens:
    """Consecutive sequences of a file, from its start again after its end.

    Raises ConfigError if the file is missing, unreadable or too short; `sequence` raises it for a token outside the
    vocabulary.
    """

    def __init__(self, data: TokenFile, recipe: Recipe) -> None:
        self._path = data.path
        self._length = recipe.sequence_length
        self._vocab_size = recipe.model.vocab_size
        try:
            self._ids = np.memmap(data.path, dtype=data.dtype, mode="r")
        except (OSError, ValueError) as error:
            raise ConfigError(f"token file {data.path}: cannot be read as {data.dtype}: {error}") from error
        # The last target of a sequence is the first input of the next one, so sequences overlap by one token.
        self._sequences = (len(self._ids) - 1) // self._length
        if self._sequences < recipe.samples_per_step:
            raise ConfigError(
                f"token file {data.path}: too short: it holds {len(self._ids)} tokens as {data.dtype}; one "
                f"step of {recipe.samples_per_step} sequences needs {recipe.tokens_per_step + 1}"
            )

    def sequence(self, number: int) -> torch.Tensor:
        """See `Tokens`."""
        start = number % self._sequences * self._length
        ids = torch.from_numpy(self._ids[start : start + self._length + 1].astype(np.int64))
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= self._vocab_size:
            raise ConfigError(
                f"token file {self._path}: id {low if low < 0 else high} near token {start} is not in the "
                f"vocabulary of {self._vocab_size}: another tokenizer, or another dtype?"
            )
        return ids
