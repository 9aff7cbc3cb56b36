"""Random numbers of a GPU, without one."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.gpu.losses.cuda_normal import normal

# torch.randn(8, device="cuda") after torch.manual_seed(0), on any GPU: so few elements take one block.
KNOWN = (-0.9247, -0.4253, -2.6438, 0.1452, -0.1209, -0.5797, -0.6229, -0.3284)


def test_the_first_numbers_of_seed_0_are_pytorchs() -> None:
    """To the four digits that PyTorch prints."""
    assert normal(8, 0, 132) == pytest.approx(KNOWN, abs=6e-5)


@pytest.mark.parametrize("size", [1, 255, 1000, 132 * 8 * 256 * 4, 132 * 8 * 256 * 4 + 5])
def test_any_size_is_normal(size: int) -> None:
    """Finite, and of mean 0 and deviation 1 as far as so many tell; the same of more elements in the same grid."""
    drawn = normal(size, 12345 << 32, 132)
    assert drawn.shape == (size,)
    assert drawn.dtype == np.float32
    assert np.isfinite(drawn).all()
    if size > 100:
        assert abs(drawn.mean()) < 5 / np.sqrt(size)
        assert abs(drawn.std() - 1) < 5 / np.sqrt(size)


def test_threads_take_turns() -> None:
    """A grid that is full repeats itself: the first number of a thread does not depend on how many are wanted."""
    full = 2 * 8 * 256  # threads of two multiprocessors
    assert np.array_equal(normal(full, 7, 2), normal(9 * full, 7, 2)[:full])
