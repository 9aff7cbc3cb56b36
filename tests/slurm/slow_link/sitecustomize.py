"""A node whose link is slow: with this folder on its PYTHONPATH, every all_reduce and all_gather takes 0.2 s longer.

With LINK_STOPS set, its ranks stop for good in the third one of a process group.
"""

import os
import signal
import time
from itertools import count
from typing import Any

import torch.distributed as dist

_allreduce: Any = dist.ProcessGroupGloo.allreduce  # type: ignore[attr-defined]  # of every build with gloo
_allgather: Any = dist.ProcessGroupGloo._allgather_base  # type: ignore[attr-defined]
_allreduce_of_group: Any = dist.ProcessGroup.allreduce
_calls = count(1)


def _slow(*args: Any) -> Any:
    time.sleep(0.2)
    return _allreduce(*args)


def _slow_gather(*args: Any) -> Any:
    time.sleep(0.2)
    return _allgather(*args)


def _stopping(*args: Any) -> Any:
    if next(_calls) == 3:
        os.kill(os.getpid(), signal.SIGSTOP)
    return _allreduce_of_group(*args)


dist.ProcessGroupGloo.allreduce = _slow  # type: ignore[attr-defined]
dist.ProcessGroupGloo._allgather_base = _slow_gather  # type: ignore[attr-defined]
if "LINK_STOPS" in os.environ:
    dist.ProcessGroup.allreduce = _stopping  # type: ignore[assignment]
