"""Memory that processes of one machine share through files, where GPUs would have their own."""

from __future__ import annotations

import time
from itertools import count
from pathlib import Path

import torch
import torch.distributed as dist


class Mapped:
    """Stands in for `peer_memory.Symmetric`. What is set on the class says how it behaves.

    Attributes:
        folder: of the files.
        late: a rank that takes its time with what it copies to and from others; None for nobody.
        meets: whether ranks wait for one another where they should.
        met: how often they have.
    """

    folder: Path
    late: int | None = None
    meets = True
    met = 0
    _numbers = count()

    def __init__(self, size: int, dtype: torch.dtype, group: dist.ProcessGroup) -> None:
        self.rank, self.ranks, self._group = dist.get_rank(group), dist.get_world_size(group), group
        number, first = next(self._numbers), dist.get_global_rank(group, 0)
        paths = [self.folder / f"{first}-{number}-{rank}" for rank in range(self.ranks)]
        if self.rank == 0:
            for path in paths:
                path.write_bytes(bytes(size * dtype.itemsize))
        dist.barrier(group)
        self._all = [torch.from_file(str(path), shared=True, size=size, dtype=dtype) for path in paths]

    def part(self, rank: int, index: int) -> torch.Tensor:
        """See `peer_memory.Places`."""
        if self.rank == self.late and rank != self.rank:
            time.sleep(0.005)
        return self._all[rank].chunk(self.ranks)[index]

    def whole(self) -> torch.Tensor:
        """See `peer_memory.Places`."""
        return self._all[self.rank]

    def meet(self) -> None:
        """See `peer_memory.Places`."""
        Mapped.met += 1
        if self.meets:
            dist.barrier(self._group)
