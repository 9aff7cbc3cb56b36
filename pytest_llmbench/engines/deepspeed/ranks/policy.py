"""The arithmetic of proximal policy optimisation, which needs PyTorch alone."""

import torch
from torch.nn import functional


def log_probabilities(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Log-probability, nat, of each of `tokens` [batch, tokens] under the `logits` before it, [batch, tokens, V]."""
    return -functional.cross_entropy(logits.float().transpose(1, 2), tokens, reduction="none")


def advantages_and_returns(
    rewards: torch.Tensor, values: torch.Tensor, *, discount: float, gae_lambda: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Estimate by how much each token did better than expected, and the return to expect in its place.

    Generalised advantage estimation (Schulman et al. 2016, arXiv:1506.02438, equation 16) over answers that end with
    their last token. A reward is paid when its token is chosen; the values are what the critic expected.
    """
    advantages = torch.empty_like(rewards)
    last = torch.zeros_like(rewards[:, 0])
    following = torch.zeros_like(last)
    for token in reversed(range(rewards.shape[1])):
        surprise = rewards[:, token] + discount * following - values[:, token]
        last = surprise + discount * gae_lambda * last
        advantages[:, token] = last
        following = values[:, token]
    return advantages, advantages + values


def policy_loss(new: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, clip: float) -> torch.Tensor:
    """Mean clipped surrogate loss (arXiv:1707.06347, equation 7) of log-probabilities now and at generation."""
    ratio = (new - old).exp()
    return torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - clip, 1 + clip)).mean()


def value_loss(new: torch.Tensor, old: torch.Tensor, returns: torch.Tensor, clip: float) -> torch.Tensor:
    """Half the mean squared error of values now, which gain nothing by leaving those at generation by over `clip`."""
    near = old + (new - old).clamp(-clip, clip)
    return 0.5 * torch.maximum((new - returns) ** 2, (near - returns) ** 2).mean()
