"""The learning rate of a step."""

import os
import subprocess
import sys

import pytest

from pytest_llmbench.core.recipe.recipes import Optimizer
from pytest_llmbench.workloads.training.learning_rate import learning_rate
from tests.conftest import INSTALLED


@pytest.mark.parametrize(
    ("step", "steps", "rate"), [(1, 20, 0.1), (10, 20, 1.0), (15, 20, 0.55), (20, 20, 0.1), (5, 5, 0.5)]
)
def test_the_learning_rate_rises_and_decays_to_a_tenth(step: int, steps: int, rate: float) -> None:
    """Ten steps up to the peak, then linearly down to a tenth; a run may end while it still rises."""
    settings = Optimizer(learning_rate=1.0, warmup_steps=10)
    assert learning_rate(settings, step, steps) == pytest.approx(rate)


def test_the_engine_of_these_tests_imports_next_to_nothing() -> None:
    """With PyTorch, hundreds of sessions would cost three times as much."""
    heavy = "{'torch', 'numpy', 'pydantic', 'yaml', 'submitit'}"
    modules = "sys, pytest_llmbench.workloads.rank.main, llmbench_unigram.training"
    code = f"import {modules}; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(INSTALLED)}, check=True)
