"""Start the `main.py` that the variable MAIN names on the CPU; `deepspeed` starts this in its place.

Two things differ from a GPU. The fork names CUDA devices, where DeepSpeed itself would ask for its accelerator. And
its configuration says fp16, which DeepSpeed refuses on most CPUs, and which changes no weight on the others: it is bf16
here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from pytest_llmbench.workloads import cuda_on_cpu

cuda_on_cpu.install()

import deepspeed  # noqa: E402 - CUDA has to be the CPU when it is imported

initialize = deepspeed.initialize


def in_bf16(*, config: Mapping[str, Any], **named: Any) -> Any:
    """The function that the fork calls, with the other type."""
    return initialize(config={**config, "fp16": {"enabled": False}, "bf16": {"enabled": True}}, **named)


deepspeed.initialize = in_bf16
cuda_on_cpu.main([os.environ["MAIN"], *sys.argv[1:]])
