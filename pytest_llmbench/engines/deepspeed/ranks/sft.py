"""Step 1 of training from human feedback: a language model learns to continue."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from pytest_llmbench.core.wire.step_events import Phase
from pytest_llmbench.engines.deepspeed.ranks.models import language_model
from pytest_llmbench.engines.deepspeed.ranks.zero import Setup, ZeroModel
from pytest_llmbench.workloads.training.tokens import batch, open_tokens


class Sft:
    """Fine-tuning on all tokens; the loss is their mean cross entropy, nat. See `loop.Training`."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._data = open_tokens(setup.recipe)
        self._model = ZeroModel(setup, language_model(setup), setup.recipe.optimizer.learning_rate)
        self.models = (self._model,)

    def accumulate(self, first: int, enter: Callable[[Phase], None]) -> torch.Tensor:
        """See `loop.Training`."""
        enter("data")
        inputs, targets = batch(self._data, first, self._setup.recipe.micro_batch_size, self._setup.device)
        enter("forward")
        logits = self._model.engine(self._setup.fed.take(inputs)).logits
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        enter("backward")
        self._model.backward(loss)
        return loss.detach()

    def remark(self) -> str:
        """Say nothing: the loss says it."""
        return ""
