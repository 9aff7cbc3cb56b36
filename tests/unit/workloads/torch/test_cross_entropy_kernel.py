"""The kernel gives what the plain function does, column by column; without a GPU, in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

COMPARE = """
import torch
from pytest_llmbench.engines.torch.ranks.cross_entropy_kernel import losses_and_gradient as ours
from pytest_llmbench.engines.torch.ranks.linear_cross_entropy import losses_and_gradient as plain

for dtype, places in ((torch.float32, 1e-6), (torch.bfloat16, 2e-2)):
    # Shorter than a block, one block, several, with an end that is no whole block, and with padding.
    for columns, counted in ((128, 100), (4096, 4096), (8192, 8192), (4224, 4097), (20096, 20000)):
        generator = torch.Generator().manual_seed(counted)
        logits = (3 * torch.randn(4, columns, generator=generator)).to(dtype)
        logits[:, counted:] = 50
        targets = torch.tensor([counted - 1, -100, 0, counted // 2])
        share = torch.tensor(0.25)
        losses, gradient = plain(logits, targets, share, counted)
        our_losses, our_gradient = ours(logits.clone(), targets, share, counted)
        torch.testing.assert_close(our_losses, losses, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(our_gradient, gradient, rtol=places, atol=1e-7)
        assert not our_gradient[1].any() and not our_gradient[:, counted:].any()
"""


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed: it comes with PyTorch for GPUs")
def test_it_is_the_plain_function(tmp_path: Path) -> None:
    """Losses, gradients, a token that does not count, and padding that has no part in it."""
    # In a process of its own: Triton looks at the variable once.
    done = subprocess.run(
        [sys.executable, "-c", COMPARE],
        env={**os.environ, "TRITON_INTERPRET": "1", "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
