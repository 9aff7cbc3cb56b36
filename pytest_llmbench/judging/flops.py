"""Model FLOPs and their share of the hardware's peak."""

from __future__ import annotations

from pytest_llmbench.core.recipe.recipes import ModelShape


def parameters(model: ModelShape, sequence_length: int) -> int:
    """Count the trainable parameters of the decoder: tied token embedding, learned positions if any, layers.

    Per layer 12 h² weights (4 h² attention, 8 h² feed-forward), 9 h biases of these and 4 h of the two
    layer norms; then the final layer norm.
    """
    h = model.hidden_size
    return model.vocab_size * h + _positions(model, sequence_length) + model.layers * (12 * h * h + 13 * h) + 2 * h


def flops_per_token(model: ModelShape, sequence_length: int) -> float:
    """Model FLOPs to train on one token: `6 N + 12 L H Q T`.

    N is the parameter count, L the layers, H the heads, Q the head width (H Q is the hidden size) and
    T the sequence length. Recomputed activations are not counted. Source: Chowdhery et al. 2022,
    "PaLM: Scaling Language Modeling with Pathways", appendix B. As there, N leaves out the
    embeddings' table look-ups only where they are not also the output layer; here it is tied, and the
    learned positions, which are only looked up, are left out.
    """
    n = parameters(model, sequence_length) - _positions(model, sequence_length)
    return 6.0 * n + 12.0 * model.layers * model.hidden_size * sequence_length


def _positions(model: ModelShape, sequence_length: int) -> int:
    return sequence_length * model.hidden_size if model.positions == "learned" else 0
