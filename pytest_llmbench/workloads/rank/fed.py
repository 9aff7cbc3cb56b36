"""Counts what a rank trains, in the tensors that its model is fed and in the model itself."""

from collections.abc import Iterable

import torch
import torch.distributed as dist

from pytest_llmbench.core.wire.step_events import TrainingEvent

_PRECISIONS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


class Fed:
    """Counts the sequences and tokens that a model is trained on; one rank of each copy `reports` them."""

    def __init__(self, *, reports: bool = True) -> None:
        self._reports = reports
        self._samples = self._tokens = 0
        self._lengths: set[int] = set()
        self._batches: set[int] = set()
        self._dtypes: set[torch.dtype] = set()

    def take(self, inputs: torch.Tensor) -> torch.Tensor:
        """Count token ids, [batch, sequence], on their way to the model; returns them."""
        batch, length = inputs.shape
        self._batches.add(batch)
        self._lengths.add(length)
        self._samples += batch
        self._tokens += batch * length
        device = inputs.device.type
        if torch.is_autocast_enabled(device):
            self._dtypes.add(torch.get_autocast_dtype(device))
        return inputs

    def step_counts(self) -> tuple[int, int]:
        """Return sequences and tokens since the last call."""
        counted = (self._samples, self._tokens) if self._reports else (0, 0)
        self._samples = self._tokens = 0
        return counted

    def trained(
        self,
        *,
        layers: int,
        parameters: int,
        dtypes: Iterable[torch.dtype],
        tensor: tuple[int, int] = (0, 1),
        pipeline: tuple[int, int] = (0, 1),
        copy: int,
    ) -> TrainingEvent:
        """Build the event about the training, from this rank's part of the model.

        `parameters` are counted by the rule of `TrainingEvent`; under autocast, the types that it uses count instead of
        `dtypes`. `tensor` and `pipeline` are rank and size of these groups.
        """
        used = self._dtypes or set(dtypes)
        return TrainingEvent(
            world_size=dist.get_world_size(), tensor=tensor[1], pipeline=pipeline[1], tensor_rank=tensor[0],
            pipeline_rank=pipeline[0], copy_rank=copy, layers=layers, parameters=parameters,
            precision=" and ".join(sorted(_PRECISIONS.get(dtype, str(dtype)) for dtype in used)),
            sequence_length=_only(self._lengths), micro_batch_size=_only(self._batches),
        )  # fmt: skip


def _only(values: set[int]) -> int | None:
    return next(iter(values)) if len(values) == 1 else None
