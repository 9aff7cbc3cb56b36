"""Reader of `nvidia-smi nvlink -s`: the links between GPUs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pytest_llmbench.core.errors import RunError

_GPU = re.compile(r"GPU (\d+): .*", re.ASCII)
_LINK = re.compile(r"Link (\d+): (?:(\d+(?:\.\d+)?) GB/s|<inactive>)", re.ASCII)
_NONE_ACTIVE = re.compile(r"all links are in-?active", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class NvlinkState:
    """The NVLinks of one GPU.

    Attributes:
        speeds: by link, GB/s in each direction; None for one that is inactive.
        all_inactive: whether the driver lists none because not one is active.
    """

    speeds: tuple[float | None, ...]
    all_inactive: bool

    @property
    def active(self) -> tuple[float, ...]:
        """Speeds of the active links."""
        return tuple(speed for speed in self.speeds if speed is not None)


def read_links(text: str) -> dict[int, NvlinkState]:
    """Read what `nvidia-smi nvlink -s` printed: links by GPU.

    Raises:
        RunError: `unreadable`, when there is no GPU in it, one twice, or a line that is neither of a GPU nor of a link.
    """
    speeds: dict[int, list[float | None]] = {}
    silent: set[int] = set()
    gpu: int | None = None
    for line in (line.strip() for line in text.splitlines()):
        if (head := _GPU.fullmatch(line)) and int(head[1]) not in speeds:
            gpu = int(head[1])
            speeds[gpu] = []
        elif gpu is not None and (link := _LINK.fullmatch(line)) and int(link[1]) == len(speeds[gpu]):
            speeds[gpu].append(None if link[2] is None else float(link[2]))
        elif gpu is not None and _NONE_ACTIVE.search(line):
            silent.add(gpu)
        elif line:
            raise RunError("unreadable", f"nvidia-smi nvlink -s printed {line[:200]!r}")
    if not speeds:
        raise RunError("unreadable", "nvidia-smi nvlink -s printed no GPU")
    return {gpu: NvlinkState(speeds=tuple(each), all_inactive=gpu in silent) for gpu, each in speeds.items()}
