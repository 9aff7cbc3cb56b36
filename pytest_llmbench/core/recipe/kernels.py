"""Words for kernels that the options of several engines share."""

from typing import Literal

Attention = Literal["fastest", "cudnn", "flash", "efficient", "math"]
