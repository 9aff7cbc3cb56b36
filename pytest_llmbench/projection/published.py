"""Bandwidths that are published, and the assumptions that stand in for what was not measured, each with its source."""

from collections.abc import Mapping

from pytest_llmbench.judging.references import same_gpu
from pytest_llmbench.projection.model import Band

# Published memory bandwidth by GPU model, GB/s: NVIDIA's data sheets of the SXM modules.
MEMORY_GB_S: Mapping[str, float] = {
    "A100-SXM4-40GB": 1555.0,
    "A100-SXM4-80GB": 2039.0,
    "H100 80GB HBM3": 3350.0,
    "H200": 4800.0,
}
# What a kernel that only moves data gets of it: 4395 of 4800 GB/s measured on one H200 (docs/measurements). The best
# end is the data sheet's, the worst an assumption.
_MEMORY = Band(best=1.0, likely=0.916, worst=0.75)

# Line rate of the network by system, Gb/s for each GPU, as the description in suites/systems/ has it.
NETWORK_GBIT_S: Mapping[str, float] = {
    "a3-highgpu-8g": 100.0, "a3-megagpu-8g": 200.0, "a3-ultragpu-8g": 400.0,
    "BM.GPU4.8": 200.0, "BM.GPU.A100-v2.8": 200.0, "BM.GPU.H100.8": 400.0, "BM.GPU.H200.8": 400.0,
    "JUWELS_Booster": 200.0,
    "ND96amsr_A100_v4": 200.0, "ND96asr_v4": 200.0, "ND96isr_H100_v5": 400.0, "ND96isr_H200_v5": 400.0,
    "p4d.24xlarge": 50.0, "p4de.24xlarge": 50.0, "p5.48xlarge": 400.0,
}  # fmt: skip
# What NCCL gets of a line. Best: 46 to 48 GB/s of 400 Gb/s are expected (NVIDIA/nccl-tests#290), 24 GB/s of 200 Gb/s
# (#119). Likely and worst: 340 GB/s of all_reduce and 200 GB/s of all_gather on 32 nodes of 8 H100 with 8 × 400 Gb/s
# (NVIDIA/nccl#1218).
_LINE = Band(best=0.96, likely=0.85, worst=0.5)

# How much of the gradients' reduction the backward pass hides, and how much of the sends between stages and of the
# tensor-parallel communication nothing does, depends on the framework and its flags: both ends are taken. The last is
# hidden only by Transformer Engine's own overlap (Megatron-LM's --tp-comm-overlap), so nothing hides it in the middle.
TENSOR_EXPOSED = Band(best=0.0, likely=1.0, worst=1.0)
HIDDEN = Band(best=1.0, likely=0.5, worst=0.0)
SENDS_EXPOSED = Band(best=0.0, likely=0.5, worst=1.0)

# Largest |predicted / published - 1| of the checks in docs/projection.md; a test computes it again.
CALIBRATED_ERROR = 0.2


def memory_gb_s(gpu: str) -> Band | None:
    """Usable memory bandwidth of a GPU, GB/s; None where its model is not in the table."""
    return next((_scaled(_MEMORY, peak) for model, peak in MEMORY_GB_S.items() if same_gpu(model, gpu)), None)


def network_gb_s(gbit_s: float) -> Band:
    """Rate of NCCL on a line of this many Gb/s, GB/s."""
    return _scaled(_LINE, gbit_s / 8.0)


def _scaled(share: Band, of: float) -> Band:
    return Band(best=share.best * of, likely=share.likely * of, worst=share.worst * of)
