"""Where training data comes from, and what is refused as such."""

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.recipes import Optimizer
from pytest_llmbench.workloads.training.learning_rate import learning_rate
from pytest_llmbench.workloads.training.tokens import batch, open_tokens, stable_seed
from tests.conftest import INSTALLED
from tests.unit.workloads.conftest import MakeRecipe

CPU = torch.device("cpu")


def test_synthetic_tokens_are_the_same_everywhere(make_recipe: MakeRecipe) -> None:
    """The first tokens of a sequence are fixed: a change here changes every published loss."""
    tokens = open_tokens(make_recipe())
    assert stable_seed(1, 5) == 8368968307046139568
    assert tokens.sequence(5)[:6].tolist() == [9, 14, 90, 141, 18, 8]


def test_synthetic_tokens_depend_on_seed_and_number_alone(make_recipe: MakeRecipe) -> None:
    """Another seed or number gives other tokens, another batch size does not."""
    tokens = open_tokens(make_recipe())
    again = open_tokens(make_recipe(global_batch_size=64, micro_batch_size=4))
    other = open_tokens(make_recipe(data={"kind": "synthetic", "seed": 2}))
    assert torch.equal(tokens.sequence(3), again.sequence(3))
    assert not torch.equal(tokens.sequence(3), tokens.sequence(4))
    assert not torch.equal(tokens.sequence(3), other.sequence(3))


def test_synthetic_tokens_follow_the_zipf_law(make_recipe: MakeRecipe) -> None:
    """Id 0 is drawn as often as the law says, and no id lies outside the vocabulary."""
    tokens = open_tokens(make_recipe(sequence_length=50_000))
    ids = tokens.sequence(0)
    assert (ids.dtype, tuple(ids.shape)) == (torch.int64, (50_001,))
    assert 0 <= int(ids.min()) <= int(ids.max()) < 256
    expected = 1 / sum(1 / k for k in range(1, 257))
    assert float((ids == 0).double().mean()) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(("vocab_size", "lower_by"), [(8192, 2.5), (51196, 3.3)])
def test_the_loss_can_fall_as_far_as_promised(vocab_size: int, lower_by: float) -> None:
    """The entropy of the law is lower than ln(vocab_size) by what the documentation says."""
    weights = [1 / k for k in range(1, vocab_size + 1)]
    total = sum(weights)
    entropy = -sum(w / total * math.log(w / total) for w in weights)
    assert math.log(vocab_size) - entropy == pytest.approx(lower_by, abs=0.05)


def test_a_batch_is_inputs_and_the_tokens_after_them(make_recipe: MakeRecipe) -> None:
    inputs, targets = batch(open_tokens(make_recipe()), 4, 2, CPU)
    assert inputs.shape == targets.shape == (2, 32)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """A file of 8 sequences of 32 tokens and one more token, ids counting up to 255 again and again."""
    path = tmp_path / "tokens.bin"
    (np.arange(8 * 32 + 1) % 256).astype(np.uint16).tofile(path)
    return path


def test_a_token_file_is_read_in_order_and_again(make_recipe: MakeRecipe, token_file: Path) -> None:
    """Sequences follow one another in the file, overlap by one token, and start again after the last."""
    tokens = open_tokens(make_recipe(data={"kind": "token_file", "path": str(token_file)}))
    assert tokens.sequence(1).tolist() == list(range(32, 65))
    assert tokens.sequence(7).tolist() == [*range(224, 256), 0]
    assert torch.equal(tokens.sequence(8), tokens.sequence(0))


@pytest.mark.parametrize(("data", "message"), [
    pytest.param({"path": "/gone"}, "/gone: cannot be read as uint16", id="missing"),
    pytest.param({"dtype": "int32"}, "cannot be read as int32", id="no_whole_number_of_tokens"),
    pytest.param({}, "holds 257 tokens as uint16; one step of 10 sequences needs 321", id="too_short_for_a_step"),
])  # fmt: skip
def test_a_bad_file_is_refused(make_recipe: MakeRecipe, token_file: Path, data: dict[str, str], message: str) -> None:
    """A step never sees a sequence twice; the error says what the file holds and what a step needs."""
    recipe = make_recipe(data={"kind": "token_file", "path": str(token_file), **data}, global_batch_size=10)
    with pytest.raises(ConfigError, match=message):
        open_tokens(recipe)


def test_an_empty_file_is_refused(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.touch()
    with pytest.raises(ConfigError, match="empty"):
        open_tokens(make_recipe(data={"kind": "token_file", "path": str(path)}))


@pytest.mark.parametrize("vocab_size", [200, 255])
def test_an_id_outside_the_vocabulary_is_refused(make_recipe: MakeRecipe, token_file: Path, vocab_size: int) -> None:
    model = {"layers": 1, "hidden_size": 8, "attention_heads": 1, "vocab_size": vocab_size}
    tokens = open_tokens(make_recipe(data={"kind": "token_file", "path": str(token_file)}, model=model))
    with pytest.raises(ConfigError, match=f"id 255 near token 224 is not in the vocabulary of {vocab_size}"):
        tokens.sequence(7)


def test_a_negative_id_is_refused(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    path = tmp_path / "negative"
    np.full(8 * 32 + 1, -7, dtype=np.int32).tofile(path)
    tokens = open_tokens(make_recipe(data={"kind": "token_file", "path": str(path), "dtype": "int32"}))
    with pytest.raises(ConfigError, match="id -7 near token 0"):
        tokens.sequence(0)


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
