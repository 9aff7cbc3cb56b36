"""AdamW as DeepSpeed's ZeRO 0 is fast with in bf16: on all parameters as one tensor.

DeepSpeed keeps the fp32 weights in one tensor only for an optimizer of its class `FusedAdam`, whose kernels nvcc must
compile. Any other is handed hundreds of tensors, each of which is converted, scaled and copied by kernels of its own.
PyTorch has the same optimizer compiled, so it is lent that class here. The gradients in fp32 are there twice for a
moment, 4 bytes a trained parameter more than tensor by tensor.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from deepspeed.ops.adam import FusedAdam
from deepspeed.runtime.fp16.fused_optimizer import FP16_Optimizer
from torch import nn

# Older ones take a norm that is not finite for 1 there, and spoil all weights.
USABLE = hasattr(FP16_Optimizer, "_skip_invalid_grad_norm")


class FlatAdamW(FusedAdam):  # type: ignore[misc]
    """`torch.optim.AdamW` that is an instance of `FusedAdam`.

    Args:
        parameters: those that are trained.
        settings: of `torch.optim.AdamW`.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], **settings: Any) -> None:
        self._adamw = torch.optim.AdamW(parameters, **settings)
        torch.optim.Optimizer.__init__(self, self._adamw.param_groups, self._adamw.defaults)
        # The very same, so that what DeepSpeed does with these it does with those.
        self.param_groups, self.state = self._adamw.param_groups, self._adamw.state

    def step(self, closure: None = None) -> None:
        """Change the parameters by their gradients."""
        self._adamw.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        self._adamw.zero_grad(set_to_none)


class NormTells:
    """Stands in for DeepSpeed's search for gradients that are not finite, which makes the host wait for each of them.

    Nothing is lost: the norm of all of them, which DeepSpeed looks at next, is finite only if each is, and a step whose
    norm is not finite is skipped just the same.
    """

    def has_overflow(self, _: Iterable[nn.Parameter]) -> bool:
        """Leave it to the norm."""
        return False
