"""Words for kernels that the options of several engines share."""

from __future__ import annotations

from typing import Literal

Attention = Literal["fastest", "cudnn", "flash", "efficient", "math"]
Collectives = Literal["nccl", "copies"]
