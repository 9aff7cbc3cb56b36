"""Step 3 of training from human feedback: an actor learns to answer so that a scorer likes it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from pytest_llmbench.core.wire.step_events import Phase
from pytest_llmbench.engines.deepspeed.options import PpoOptions as Settings
from pytest_llmbench.engines.deepspeed.ranks.models import language_model, scorer
from pytest_llmbench.engines.deepspeed.ranks.policy import (
    advantages_and_returns,
    log_probabilities,
    policy_loss,
    value_loss,
)
from pytest_llmbench.engines.deepspeed.ranks.zero import Setup, ZeroModel, frozen
from pytest_llmbench.workloads.training.arrival import on_arrival
from pytest_llmbench.workloads.training.tokens import batch, open_tokens, stable_seed

# The scores: away from zero, where the values start, so that there is something for the critic to find.
_MEAN, _SPREAD = 2.0, 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class _Episode:
    """A micro batch of answers and what came of them; all of [batch, answer] but where it says otherwise.

    Attributes:
        tokens: prompts and answers, [batch, sequence].
        log_probs, values: of actor and critic when they were generated.
        error: half the mean squared error of the values, a scalar.
        score: mean of the scores.
        divergence: mean over the answers, nat.
    """

    tokens: torch.Tensor
    log_probs: torch.Tensor
    values: torch.Tensor
    advantages: torch.Tensor
    returns: torch.Tensor
    error: torch.Tensor
    score: torch.Tensor
    divergence: torch.Tensor


class Ppo:
    """Proximal policy optimisation with four models; the loss is the critic's error. See `loop.Training`.

    For each micro batch the actor continues the prompts, the scorer scores the last token of each answer, and
    the divergence from the reference (the actor as it was at the start) is taken off at every token; then actor
    and critic are trained once on what came out. Generating is part of phase `data`.

    That error is half the mean square of what the critic had expected of an answer's rest, at each of its tokens,
    less what came. It is no loss that anything is trained on, but the one number that has to fall: values start
    at zero and scores are elsewhere. The actor's loss swings around its mean advantage whatever it learns, and the
    critic's is small at first where its targets are its own values of later tokens.

    There is no trained scorer: it has initial values and keeps them, so the scores are arbitrary but fixed, at
    the full cost of computing them.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._data = open_tokens(setup.recipe)
        self._settings = setup.options.ppo or Settings()
        self._length = setup.options.answer_of(setup.recipe.sequence_length)
        rate = setup.recipe.optimizer.learning_rate
        shape = setup.options.critic or setup.recipe.model
        self._actor = ZeroModel(setup, language_model(setup), rate)
        self._critic = ZeroModel(setup, scorer(setup, shape), self._settings.critic_learning_rate or rate)
        self._reference = frozen(setup, language_model(setup, lora=False))
        head_std = _SPREAD / math.sqrt(shape.hidden_size)  # the head's input is normalised: √h long
        self._scorer = frozen(setup, scorer(setup, shape, head_std=head_std, head_bias=_MEAN))
        self._draws = torch.Generator(setup.device).manual_seed(stable_seed(setup.seed, setup.rank))
        self._told: list[torch.Tensor] = []
        self.models = (self._actor, self._critic)

    def accumulate(self, first: int, enter: Callable[[Phase], None]) -> torch.Tensor:
        """See `loop.Training`."""
        clip = self._settings.clip
        enter("data")
        rows, _ = batch(self._data, first, self._setup.recipe.micro_batch_size, self._setup.device)
        episode = self._play(rows[:, : -self._length])
        enter("forward")
        tokens = self._setup.fed.take(episode.tokens)
        log_probs, values = self._ask(self._actor.engine, tokens), self._expect(tokens)
        actor_loss = policy_loss(log_probs, episode.log_probs, episode.advantages, clip)
        critic_loss = value_loss(values, episode.values, episode.returns, clip)
        on_arrival(critic_loss, partial(enter, "sync"))
        enter("backward")
        self._actor.backward(actor_loss)
        self._critic.backward(critic_loss)
        self._told.append(torch.stack((episode.score, episode.divergence, actor_loss.detach())))
        return episode.error

    @torch.no_grad()
    def _play(self, prompts: torch.Tensor) -> _Episode:
        settings = self._settings
        for model in self.models:
            model.engine.eval()
        with self._actor.generating():
            tokens = generate(self._actor.engine.module, prompts, self._length, self._draws)
        log_probs, values = self._ask(self._actor.engine, tokens), self._expect(tokens)
        divergence = log_probs - self._ask(self._reference, tokens)
        scores = self._scorer(tokens)[:, -1]
        for model in self.models:
            model.engine.train()
        rewards = -settings.kl_coefficient * divergence
        rewards[:, -1] += scores
        estimate = partial(advantages_and_returns, rewards, values, discount=settings.discount)
        advantages, returns = estimate(gae_lambda=settings.gae_lambda)
        _, outcome = estimate(gae_lambda=1.0)
        return _Episode(
            tokens=tokens,
            log_probs=log_probs,
            values=values,
            advantages=advantages,
            returns=returns,
            error=0.5 * (values - outcome).square().mean(),
            score=scores.mean(),
            divergence=divergence.sum(1).mean(),
        )

    def _ask(self, model: Any, tokens: torch.Tensor) -> torch.Tensor:
        """Log-probability of each token of the answers, [batch, answer]."""
        return log_probabilities(model(tokens).logits[:, -self._length - 1 : -1], tokens[:, -self._length :])

    def _expect(self, tokens: torch.Tensor) -> torch.Tensor:
        """The critic's value before each token of the answers, [batch, answer]."""
        values: torch.Tensor = self._critic.engine(tokens)[:, -self._length - 1 : -1]
        return values

    def remark(self) -> str:
        """Say how the actor fared."""
        score, divergence, loss = torch.stack(self._told).mean(0).tolist()
        self._told.clear()
        return f"mean score {score:.4f}, divergence {divergence:.4f} nat an answer, policy loss {loss:.4f}"


def generate(model: nn.Module, prompts: torch.Tensor, length: int, draws: torch.Generator) -> torch.Tensor:
    """Continue prompts [batch, prompt] by `length` tokens drawn as the model weighs them; returns both, [batch, all].

    Every rank makes as many forward passes, so that those of a sharded model fit together.
    """
    tokens, new = prompts, prompts
    cache: Any = None
    for _ in range(length):
        out = model(new, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        new = torch.multinomial(out.logits[:, -1].float().softmax(-1), 1, generator=draws)
        tokens = torch.cat((tokens, new), 1)
    return tokens
