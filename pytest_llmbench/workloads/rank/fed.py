"""Observes a rank's training: its input tensors, the passes of its layers, and its optimizer."""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from pytest_llmbench.core.wire.step_events import TrainingEvent

_PRECISIONS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
# Attributes with the dropout rate of a module that drops out by a function.
_RATES = ("dropout", "_dropout", "hidden_dropout", "attention_dropout")
_SWITCHES = ("activation_checkpointing", "gradient_checkpointing")
# Number of values of each matrix in `TrainingEvent.weights`.
_SAMPLE = 256


class Fed:
    """Counts sequences, tokens, passes and optimizer steps of a model; one rank of each copy `reports`."""

    def __init__(self, *, reports: bool = True) -> None:
        self._reports = reports
        self._samples = self._tokens = 0
        self._lengths: set[int] = set()
        self._batches: set[int] = set()
        self._dtypes: set[torch.dtype] = set()
        self._factors: dict[int, torch.Tensor] = {}
        self._keys: list[torch.Tensor] = []  # of the micro batches of this step
        self._keys_of_steps: list[torch.Tensor] = []
        self._parts: Sequence[nn.Module] = ()
        self._layers: list[nn.Module] = []
        self._passes: list[dict[int, bool]] = []
        self._hooks: list[Any] = []
        self._optimizer_steps: dict[int, int] = {}

    def watch(self, parts: Sequence[nn.Module], layer_type: type[nn.Module]) -> None:
        """Watch the training of these parts of a model; call it before the first step.

        The modules of a layer that is not compiled show in the first step whether a backward pass runs them again.
        """
        self._parts = parts
        self._layers = [module for part in parts for module in part.modules() if isinstance(module, layer_type)]
        self._passes = [{} for _ in self._layers]
        for layer, passes in zip(self._layers, self._passes, strict=True):
            if layer._compiled_call_impl is None:  # noqa: SLF001 - it tells whether `compile` was called
                inner = (module for module in layer.modules() if module is not layer)
                self._hooks += [module.register_forward_pre_hook(partial(_note_pass, passes)) for module in inner]
        self._optimizer_hook = register_optimizer_step_post_hook(self._count_step)

    def take(self, inputs: torch.Tensor) -> torch.Tensor:
        """Count token ids, [batch, sequence], and return them for the model."""
        batch, length = inputs.shape
        self._batches.add(batch)
        self._lengths.add(length)
        self._samples += batch
        self._tokens += batch * length
        device, number = inputs.device, inputs.numel()
        if torch.is_autocast_enabled(device.type):
            self._dtypes.add(torch.get_autocast_dtype(device.type))
        if number not in self._factors:
            self._factors[number] = _random_factors(number).to(device)
        self._keys.append((inputs.reshape(-1) * self._factors[number]).sum())
        return inputs

    def step_counts(self) -> tuple[int, int]:
        """Return sequences and tokens since the last call, at the end of each step."""
        counted = (self._samples, self._tokens) if self._reports else (0, 0)
        self._samples = self._tokens = 0
        if self._keys:
            self._keys_of_steps.append(torch.stack(self._keys))
        self._keys = []
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        return counted

    def trained(
        self,
        *,
        parameters: int,
        dtypes: Iterable[torch.dtype],
        tensor: tuple[int, int] = (0, 1),
        pipeline: tuple[int, int] = (0, 1),
        copy: int,
        products: Mapping[str, int] | None = None,
    ) -> TrainingEvent:
        """Build the event about the training, from this rank's part of the model.

        `parameters` are counted by the rule of `TrainingEvent`; under autocast, the types that it uses count instead of
        `dtypes`, and the precisions of the blocks' `products` instead of both, with the number of each. `tensor` and
        `pipeline` are rank and size of these groups.
        """
        used = self._dtypes or set(dtypes)
        self._optimizer_hook.remove()
        keys = torch.cat(self._keys_of_steps).tolist() if self._keys_of_steps else []
        return TrainingEvent(
            world_size=dist.get_world_size(), tensor=tensor[1], pipeline=pipeline[1], tensor_rank=tensor[0],
            pipeline_rank=pipeline[0], copy_rank=copy, layers=len(self._layers), parameters=parameters,
            precision=" and ".join(sorted(products or {_PRECISIONS.get(dtype, str(dtype)) for dtype in used})),
            products=None if products is None else dict(products),
            sequence_length=_single_value(self._lengths), micro_batch_size=_single_value(self._batches),
            dropout=" and ".join(f"{rate:g}" for rate in sorted(set(_dropout_rates(self._parts)))),
            activation_checkpointing=self._checkpointing(), weights=_sum_weights(self._parts),
            optimizer_steps=min(self._optimizer_steps.values(), default=0), repeated=len(keys) - len(set(keys)),
            batches=hashlib.blake2b(repr(keys).encode(), digest_size=16).hexdigest() if keys else None,
        )  # fmt: skip

    def _count_step(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self._optimizer_steps[id(optimizer)] = self._optimizer_steps.get(id(optimizer), 0) + 1

    def _checkpointing(self) -> str | None:
        """Return the checkpointing of the layers: as seen in the first step, else by their attributes."""
        found = set()
        for layer, passes in zip(self._layers, self._passes, strict=True):
            again = [*passes.values()] or [any(getattr(layer, name, False) for name in _SWITCHES)]
            found.add("full" if again[0] else "selective" if any(again) else "none")
        return next(iter(found)) if len(found) == 1 else "partial" if found else None


def _note_pass(passes: dict[int, bool], module: nn.Module, _: object) -> None:
    """Note that a module runs, and whether it does so within a backward pass."""
    again = torch._C._current_graph_task_id() >= 0  # noqa: SLF001 - as PyTorch's own checkpointing does
    passes[id(module)] = passes.get(id(module), False) or again


def _dropout_rates(parts: Sequence[nn.Module]) -> Iterable[float]:
    for module in (module for part in parts for module in part.modules()):
        rates = [module.p] if isinstance(module, nn.Dropout) else [getattr(module, name, None) for name in _RATES]
        yield from (rate if module.training else 0.0 for rate in rates if isinstance(rate, float))


def _sum_weights(parts: Sequence[nn.Module]) -> float | None:
    """See `TrainingEvent.weights`."""
    total = square = 0.0
    for weight in (weight for part in parts for weight in part.parameters() if weight.dim() > 1):
        if isinstance(weight, DTensor) or hasattr(weight, "ds_id"):
            return None
        values = weight.detach().reshape(-1)[:_SAMPLE].double().cpu()
        total += float(values @ torch.cos(torch.arange(len(values), dtype=torch.float64)))
        square += float(values @ values)
    share = total / math.sqrt(square) if square else math.nan
    return share if math.isfinite(share) else None


def _single_value(values: set[int]) -> int | None:
    return next(iter(values)) if len(values) == 1 else None


def _random_factors(number: int) -> torch.Tensor:
    """The factors of a micro batch's key, which all ranks draw alike.

    Evenly spaced ones would give many batches of small tokens one key: a sum of tokens times places has a small range.
    """
    drawn = torch.Generator().manual_seed(number)
    return torch.randint(-(2**63), 2**63 - 1, (number,), generator=drawn, dtype=torch.int64)
