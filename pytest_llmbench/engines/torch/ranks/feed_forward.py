"""Parts of a feed-forward layer: its activation, and experts, of which each token is computed by few."""

import torch
from torch import nn
from torch.nn import functional

from pytest_llmbench.core.errors import NOT_MEASURED, ConfigError
from pytest_llmbench.core.recipe.shape import Activation, ModelShape
from pytest_llmbench.engines.torch.ranks.linear_cross_entropy import product_dtype


def activate(inner: torch.Tensor, activation: Activation) -> torch.Tensor:
    """Apply an activation to [..., n]; of `swiglu`, the first half is the gate of the second, and n / 2 are left."""
    if activation == "swiglu":
        gate, inner = inner.chunk(2, dim=-1)
        return functional.silu(gate) * inner
    inner = functional.gelu(inner) if activation == "gelu" else functional.relu(inner)
    return inner.square() if activation == "squared_relu" else inner


class ExpertLayer(nn.Module):
    """Experts of one layer, which drop no token, and the router that sends each token to `top_k` of them.

    As in Qwen3 (2025, arXiv:2505.09388), the router's softmax is over all experts and in fp32, and what the chosen ones
    have of it is divided by its sum. Each token also goes through the shared experts. Raises ConfigError if this
    PyTorch lacks grouped products.
    """

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        if (experts := shape.experts) is None:
            raise ValueError("a shape without experts")
        if not hasattr(functional, "grouped_mm"):
            raise ConfigError(f"{NOT_MEASURED}: model.experts needs PyTorch 2.10 or newer, not {torch.__version__}")
        hidden, inputs = shape.hidden_size, 2 if shape.gated else 1
        width, shared = experts.feed_forward_size, experts.shared_size
        self.number, self.top_k, self.activation = experts.number, experts.top_k, shape.activation or "relu"
        self.router = nn.Linear(hidden, self.number, bias=False)
        self.weight_in = nn.Parameter(torch.empty(self.number, inputs * width, hidden))
        self.weight_out = nn.Parameter(torch.empty(self.number, hidden, width))
        self.shared_in = nn.Linear(hidden, inputs * shared, bias=False) if shared else None
        self.shared_out = nn.Linear(shared, hidden, bias=False) if shared else None

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Map [batch, sequence, h] to the same shape, and return how uneven the load of experts is: 1 if it is even.

        That is the sum over experts of their share of a sequence's tokens times their mean probability, times their
        number, and the mean over sequences (DeepSeek-V3, arXiv:2412.19437, equation 17).
        """
        batch, length, _ = hidden.shape
        probabilities = self.router(hidden).float().softmax(-1)
        weights, chosen = probabilities.topk(self.top_k)
        weights = weights / weights.sum(-1, keepdim=True)
        loads = (chosen.unsqueeze(-1) == torch.arange(self.number, device=hidden.device)).sum((1, 2))
        uneven = (loads * probabilities.mean(1)).sum(-1).mean() * (self.number / (self.top_k * length))

        # All stays on the device: the kernel of the products finds there where the rows of each expert end.
        ends, order = loads.sum(0).cumsum(0).to(torch.int32), chosen.flatten().argsort(stable=True)
        places = torch.empty_like(order).scatter(0, order, torch.arange(len(order), device=order.device))
        dtype = product_dtype(hidden)
        copies = hidden.to(dtype).unsqueeze(2).expand(-1, -1, self.top_k, -1).flatten(0, 2)
        inner = activate(_grouped(_ordered(copies, order, places), self.weight_in.to(dtype), ends), self.activation)
        # The second product is linear: to weigh its factor spares keeping its result for the backward pass.
        inner = (inner * _ordered(weights.flatten(), order, places).unsqueeze(1)).to(dtype)
        rows = _ordered(_grouped(inner, self.weight_out.to(dtype), ends), places, order)
        out = rows.view(batch, length, self.top_k, -1).sum(2).to(dtype)  # autocast on a GPU has sums in fp32
        if self.shared_in is not None and self.shared_out is not None:
            out = out + self.shared_out(activate(self.shared_in(hidden), self.activation))
        return out, uneven


class _Grouped(torch.autograd.Function):
    """Products of consecutive groups of rows with the matrix of each: [n, h] by [groups, m, h] is [n, m]."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, rows: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(rows, weight, ends)
        return functional.grouped_mm(rows, weight.transpose(1, 2), offs=ends)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        rows, weight, ends = ctx.saved_tensors  # type: ignore[attr-defined]
        gradient = gradients[0].contiguous()
        of_weight = functional.grouped_mm(gradient.t(), rows, offs=ends)
        # On B200, the gradient of a group without rows is what was in the memory (PyTorch's issue 172439).
        used = ends.diff(prepend=ends.new_zeros(1)) > 0
        return functional.grouped_mm(gradient, weight, offs=ends), torch.where(used[:, None, None], of_weight, 0), None


class _Ordered(torch.autograd.Function):
    """Rows in another order, of which `places` is the inverse. Its gradient is gathered, too, without atomic sums."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, rows: torch.Tensor, order: torch.Tensor, places: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(places)
        return rows[order]

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (places,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return gradients[0][places], None, None


def _grouped(rows: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = _Grouped.apply(rows, weight, ends)  # type: ignore[no-untyped-call]
    return out


def _ordered(rows: torch.Tensor, order: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = _Ordered.apply(rows, order, places)  # type: ignore[no-untyped-call]
    return out
