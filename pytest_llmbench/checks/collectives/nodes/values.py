"""Test data for collectives, and the check that it arrived.

Every element is a small whole number that depends on its rank, position and round, so that a contribution that is
missing, doubled, misplaced or of an earlier round makes a wrong value. Every sum of them fits into the digits of the
type, in any order: a right result is right to the last bit.
"""

import math

import torch

# Largest whole number up to which a type has all.
_EXACT = {torch.float32: 2**24, torch.bfloat16: 2**8}
# Values repeat after a prime of at least this size, so after other numbers than powers of two.
_LEAST_PERIOD = 251
# Distance between ranks, and between rounds; both are prime to the period.
_PER_RANK, _PER_ROUND = 7, 31
_BLOCK = 1 << 22
_NEVER = -1.0


class Values:
    """The values of one group of ranks, in tables of one period from some position on."""

    def __init__(self, ranks: int, dtype: torch.dtype) -> None:
        self.period = _prime(max(_LEAST_PERIOD, ranks))
        self._exact = _EXACT[dtype]
        # At any position all ranks differ in their step, so that a sum is at most 0 + 1 + ... + this.
        self._largest_part = (math.isqrt(8 * self._exact + 1) - 1) // 2
        self._total = torch.zeros(self.period, dtype=torch.int64)
        for rank in range(ranks):
            self._total += self.part(rank, 0)

    def of(self, rank: int, round_: int, start: int = 0) -> torch.Tensor:
        """The table of one rank from a position on, for an operation that moves data."""
        return self._small(rank, round_, start, self._exact)

    def part(self, rank: int, round_: int, start: int = 0) -> torch.Tensor:
        """The table of one rank from a position on, for an operation that adds."""
        return self._small(rank, round_, start, self._largest_part)

    def total(self, round_: int, start: int = 0) -> torch.Tensor:
        """The table of the sum over all ranks from a position on."""
        return self._total.roll(-(start + _PER_ROUND * round_))

    def _small(self, rank: int, round_: int, start: int, largest: int) -> torch.Tensor:
        first = start % self.period + _PER_RANK * rank + _PER_ROUND * round_
        steps = (torch.arange(self.period) + first) % self.period
        return torch.where(steps <= largest, steps, 0)


def fill(tensor: torch.Tensor, table: torch.Tensor) -> None:
    """Write a table into a flat tensor, repeated up to its end."""
    block = _block(tensor, table)
    for start in range(0, len(tensor), len(block)):
        chunk = tensor[start : start + len(block)]
        chunk.copy_(block[: len(chunk)])


def spoil(tensor: torch.Tensor) -> None:
    """Write a value that no operation gives, so that an unwritten element is a wrong one."""
    tensor.fill_(_NEVER)


def wrong(tensor: torch.Tensor, table: torch.Tensor) -> int:
    """Count the elements of a flat tensor that differ from a repeated table; NaN is always wrong."""
    block = _block(tensor, table)
    count = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for start in range(0, len(tensor), len(block)):
        chunk = tensor[start : start + len(block)]
        count += (chunk != block[: len(chunk)]).sum()
    return int(count)


def _block(tensor: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Some periods of a table at once: a large buffer is compared in pieces, without a second one of its size."""
    periods = math.ceil(min(len(tensor), _BLOCK) / len(table))
    return table.to(tensor.device, tensor.dtype).repeat(max(1, periods))


def _prime(least: int) -> int:
    number = least
    while any(number % divisor == 0 for divisor in range(2, math.isqrt(number) + 1)):
        number += 1
    return number
