"""Choice of PyTorch's attention kernel for a training: the one it names, or the one that proves fastest."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import torch
import torch.distributed as dist
from torch.compiler import config as compiler_config
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.kernels import Attention
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.workloads.training import matmul

KERNELS: Mapping[Attention, SDPBackend] = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
# `math` keeps all scores, so it is used only if it is named.
_CANDIDATES: tuple[Attention, ...] = ("cudnn", "flash", "efficient")
_TRIAL_S = 0.1


@contextmanager
def kernel(recipe: Recipe, asked: Attention, device: torch.device) -> Iterator[None]:
    """Compute attention in this block with one kernel, the same on all ranks; the output names it.

    Kernels are tried on the recipe's model, micro batch and precision, and on how many ranks share a layer. A CPU has
    only one, so the choice is ignored there.

    Raises:
        ConfigError: this GPU cannot compute the recipe's attention with it.
    """
    if device.type == "cpu":
        yield
        return
    candidates = _CANDIDATES if asked == "fastest" else (asked,)
    rates = {name: rate for name in candidates if (rate := _rate(recipe, KERNELS[name], device)) is not None}
    fastest = [max(rates, key=lambda name: rates[name], default=None)]
    dist.broadcast_object_list(fastest)
    (name,) = fastest
    if name is None or name not in rates:
        raise ConfigError(
            f"recipe {recipe.name}: {torch.cuda.get_device_name(device)} cannot compute its attention with "
            f"{name or ' or '.join(candidates)}: set options.attention to another of {', '.join(KERNELS)}"
        )
    # What was compiled before, for another kernel, is kept on disk, and PyTorch would take it for this one.
    compiled_apart = compiler_config.patch(cache_key_tag=f"attention: {name}")  # type: ignore[attr-defined]
    with sdpa_kernel(KERNELS[name]), compiled_apart:
        print(f"attention kernel: {name}", flush=True)
        yield


def _rate(recipe: Recipe, backend: SDPBackend, device: torch.device) -> float | None:
    """Measure how often a second a kernel computes one layer's attention and gradient; None if it cannot."""
    shape = recipe.model
    dtype = torch.bfloat16 if recipe.precision == "bf16" else torch.float32
    heads = shape.attention_heads // recipe.parallelism.tensor
    size = (recipe.micro_batch_size, recipe.sequence_length, 3, heads)
    packed = torch.randn(*size, shape.hidden_size // shape.attention_heads, device=device, dtype=dtype)
    packed.requires_grad_()

    def work() -> None:
        query, key, value = packed.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=shape.dropout)
        torch.autograd.grad(mixed, packed, torch.ones_like(mixed))

    with suppress(RuntimeError), sdpa_kernel(backend):
        return max(matmul.rates(work, device, seconds=_TRIAL_S, start=lambda: None))
    return None
