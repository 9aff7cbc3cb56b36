"""Micro batches made ahead are the ones that would be made later."""

from __future__ import annotations

import torch

from pytest_llmbench.workloads.batches import Batches
from pytest_llmbench.workloads.tokens import batch, open_tokens

from .conftest import MakeRecipe

CPU = torch.device("cpu")


def test_a_batch_made_ahead_is_the_same(make_recipe: MakeRecipe) -> None:
    """It is given to whoever asks for it, once; any other is made when it is asked for."""
    recipe = make_recipe()
    batches, tokens = Batches(recipe, CPU), open_tokens(recipe)
    batches.prepare(4)
    for first in (0, 4, 4, 6):
        for made, wanted in zip(batches.get(first), batch(tokens, first, recipe.micro_batch_size, CPU), strict=True):
            assert torch.equal(made, wanted)
