"""A node whose link is slow: with this folder on its PYTHONPATH, every all_reduce of its ranks takes 0.2 s longer."""

import time
from typing import Any

import torch.distributed as dist

_allreduce: Any = dist.ProcessGroupGloo.allreduce  # type: ignore[attr-defined]  # of every build with gloo


def _slow(*args: Any) -> Any:
    time.sleep(0.2)
    return _allreduce(*args)


dist.ProcessGroupGloo.allreduce = _slow  # type: ignore[attr-defined]
