"""Answers of ranks about collectives. Without PyTorch, which the login node may not have."""

from collections.abc import Mapping

from pydantic import NonNegativeInt

from pytest_llmbench.core.record.curves import Curve
from pytest_llmbench.core.wire.answers import DeviceAnswer, NcclLines, ProbeAnswer


class MeasuredCollectives(DeviceAnswer):
    """The measurement of all ranks."""

    curves: Mapping[str, Curve]  # by operation
    unsupported: Mapping[str, str]  # reasons of the backend for operations without one
    notes: tuple[str, ...]


class RankCollectives(ProbeAnswer):
    """The answer of one rank."""

    wrong: Mapping[str, NonNegativeInt]  # wrong elements at this rank by operation, for all measured ones
    measured: MeasuredCollectives | None  # the measurement, from rank 0; None from the others
    nccl: NcclLines | None = None  # NCCL's lines, where they were asked for
