"""Chooses PyTorch's attention kernel for a training: the one that the options name, or the fastest of a trial."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import torch
from torch.compiler import config as compiler_config
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.kernels import Attention
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.workloads.rank.rendezvous import exchange_texts
from pytest_llmbench.workloads.training import matmul

KERNELS: Mapping[Attention, SDPBackend] = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
# `math` stores all scores, so it is used only if the options name it.
_CANDIDATES: tuple[Attention, ...] = ("cudnn", "flash", "efficient")
_TRIAL_S = 0.1


@contextmanager
def kernel(recipe: Recipe, asked: Attention, device: torch.device) -> Iterator[None]:
    """Compute attention in this block with one kernel, the same on all ranks; the output names it.

    The trial has the shape of the recipe: model, micro batch, precision and tensor parallelism. A CPU has one kernel,
    so the choice is ignored there. Raises ConfigError if the kernel fails on this GPU for the recipe's attention.
    """
    if device.type == "cpu":
        yield
        return
    candidates = _CANDIDATES if asked == "fastest" else (asked,)
    rates = {name: rate for name in candidates if (rate := _rate(recipe, KERNELS[name], device)) is not None}
    fastest = exchange_texts(max(rates, key=lambda name: rates[name], default=""), device)[0]
    name = next((name for name in rates if name == fastest), None)
    if name is None:
        raise ConfigError(
            f"recipe {recipe.name}: {torch.cuda.get_device_name(device)} cannot compute its attention with "
            f"{fastest or ' or '.join(candidates)}: set options.attention to another of {', '.join(KERNELS)}"
        )
    # The tag separates compiled code on disk by kernel; PyTorch would otherwise reuse that of another kernel.
    compiled_apart = compiler_config.patch(cache_key_tag=f"attention: {name}")  # type: ignore[attr-defined]
    with sdpa_kernel(KERNELS[name]), compiled_apart:
        print(f"attention kernel: {name}", flush=True)
        yield


def _rate(recipe: Recipe, backend: SDPBackend, device: torch.device) -> float | None:
    """Measure how often per second a kernel computes one layer's attention and gradient; None if the kernel fails."""
    shape = recipe.model
    dtype = torch.float32 if recipe.precision == "fp32" else torch.bfloat16
    ranks = recipe.parallelism.tensor
    heads, groups = shape.attention_heads // ranks, max(1, shape.key_value_heads // ranks)
    size = (recipe.micro_batch_size, recipe.sequence_length, heads + 2 * groups, shape.head_width)
    packed = torch.randn(*size, device=device, dtype=dtype).requires_grad_()

    def work() -> None:
        query, key, value = torch.split(packed.transpose(1, 2), [heads, groups, groups], dim=1)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, dropout_p=shape.dropout, enable_gqa=heads != groups
        )
        torch.autograd.grad(mixed, packed, torch.ones_like(mixed))

    with suppress(RuntimeError), sdpa_kernel(backend):
        return max(matmul.rates(work, device, seconds=_TRIAL_S, start=lambda: None))
    return None
