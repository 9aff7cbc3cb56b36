"""Normal numbers as PyTorch draws them on an NVIDIA GPU, drawn on the CPU: what a GPU's training started from.

Each thread of the GPU has a sequence of its own of Philox4x32-10 (Salmon et al. 2011), of whose four words a call makes
four numbers by Box and Muller; threads take elements in turns. How many threads there are depends on the GPU.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_BLOCK = 256
_THREADS_OF_A_MULTIPROCESSOR = 2048
_PER_CALL = 4
_WORD = np.uint64(0xFFFFFFFF)
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10

Words = list[npt.NDArray[np.uint64]]


def normal(size: int, seed: int, multiprocessors: int) -> npt.NDArray[np.float32]:
    """The first draw of `size` elements of N(0, 1) by a generator with this seed, fp32.

    Args:
        size: at least 1.
        seed: of 64 bits.
        multiprocessors: of the GPU; an H200 or H100 SXM has 132.
    """
    blocks = min(-(-size // _BLOCK), multiprocessors * (_THREADS_OF_A_MULTIPROCESSOR // _BLOCK))
    threads = blocks * _BLOCK
    calls = -(-size // (threads * _PER_CALL))
    drawn = np.empty((calls, _PER_CALL, threads), np.float32)
    for call in range(calls):
        words = _philox(call, threads, seed)
        drawn[call, 0], drawn[call, 1] = _box_muller(words[0], words[1])
        drawn[call, 2], drawn[call, 3] = _box_muller(words[2], words[3])
    return drawn.reshape(-1)[:size]


def _philox(call: int, threads: int, seed: int) -> Words:
    """Four words of each thread's sequence."""
    zeros = np.zeros(threads, np.uint64)
    words = [zeros + np.uint64(call), zeros, np.arange(threads, dtype=np.uint64), zeros]
    keys = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(_ROUNDS):
        low, high = _MULTIPLIERS[0] * words[0], _MULTIPLIERS[1] * words[2]
        words = [
            (high >> np.uint64(32)) ^ words[1] ^ np.uint64(keys[0]), high & _WORD,
            (low >> np.uint64(32)) ^ words[3] ^ np.uint64(keys[1]), low & _WORD,
        ]  # fmt: skip
        keys = [(key + step) & 0xFFFFFFFF for key, step in zip(keys, _STEPS, strict=True)]
    return words


def _box_muller(
    radius: npt.NDArray[np.uint64], angle: npt.NDArray[np.uint64]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    unit = np.float32(2.0**-32)
    first = radius.astype(np.float32) * unit + unit / np.float32(2)
    second = angle.astype(np.float32) * (unit * np.float32(2 * np.pi)) + unit * np.float32(np.pi)
    length = np.sqrt(np.float32(-2) * np.log(first))
    return length * np.sin(second), length * np.cos(second)
