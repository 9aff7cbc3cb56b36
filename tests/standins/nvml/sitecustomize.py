"""Ranks of the CPU that watch a GPU each, ten times a second: with this folder on their PYTHONPATH."""

from typing import Any

from pytest_llmbench.workloads.rank import gpu_samples

_module: Any = gpu_samples
_module.gpu_uuid = lambda context: f"GPU-{context.rank}"
_module.PERIOD_S = 0.1
