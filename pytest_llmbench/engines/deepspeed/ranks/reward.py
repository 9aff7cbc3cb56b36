"""Steps 1 and 2 of training from human feedback: a model learns to continue; a scorer learns which answer is better."""

from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional

from pytest_llmbench.core.wire.step_events import Phase
from pytest_llmbench.engines.deepspeed.ranks.models import language_model, scorer
from pytest_llmbench.engines.deepspeed.ranks.zero import Setup, ZeroModel
from pytest_llmbench.workloads.training.arrival import on_arrival
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
        on_arrival(loss, partial(enter, "sync"))
        enter("backward")
        self._model.backward(loss)
        return loss.detach()

    def remark(self) -> str:
        """Say nothing: the loss says it."""
        return ""


class Reward:
    """A scorer on pairs; the loss is that of ranking them, ln 2 for a guess. See `loop.Training`.

    Both answers of a pair follow the same prompt. The chosen one is how the sequence goes on; in the rejected
    one each token id k is V - 1 - k, so that with tokens of a Zipf law the frequent become rare. Both are
    sequences of the batch, so a micro batch of n holds n / 2 pairs.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._data = open_tokens(setup.recipe)
        model = scorer(setup, setup.recipe.model)
        self._model = ZeroModel(setup, model, setup.recipe.optimizer.learning_rate)
        self._right: list[torch.Tensor] = []
        self.models = (self._model,)

    def accumulate(self, first: int, enter: Callable[[Phase], None]) -> torch.Tensor:
        """See `loop.Training`."""
        recipe, device = self._setup.recipe, self._setup.device
        enter("data")
        chosen, _ = batch(self._data, first // 2, recipe.micro_batch_size // 2, device)
        answer = slice(-self._setup.options.answer_of(recipe.sequence_length), None)
        rejected = chosen.clone()
        rejected[:, answer] = recipe.model.vocab_size - 1 - chosen[:, answer]
        enter("forward")
        better, worse = self._model.engine(self._setup.fed.take(torch.cat((chosen, rejected))))[:, -1].chunk(2)
        loss = -functional.logsigmoid(better - worse).mean()
        on_arrival(loss, partial(enter, "sync"))
        enter("backward")
        self._model.backward(loss)
        self._right.append(better > worse)
        return loss.detach()

    def remark(self) -> str:
        """Say how many pairs were ranked right."""
        right = torch.cat(self._right).float().mean().item()
        self._right.clear()
        return f"{right:.1%} of the pairs ranked right"
