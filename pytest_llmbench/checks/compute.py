"""Compute: does every GPU (or CPU) of every node reach its rates, hold them, and compute the same as the others?"""

from __future__ import annotations

from pytest_llmbench.checks._compute_bandwidth import HostDeviceBandwidth, MemoryBandwidth
from pytest_llmbench.checks._compute_gemm import Gemm
from pytest_llmbench.checks._compute_sustained import Sustained
from pytest_llmbench.checks.base import Check

CHECKS: tuple[Check, ...] = (Gemm(), MemoryBandwidth(), HostDeviceBandwidth(), Sustained())
