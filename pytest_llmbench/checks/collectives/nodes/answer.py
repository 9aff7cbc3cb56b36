"""Answers of ranks about collectives. Without PyTorch, which the login node may not have."""

from collections.abc import Mapping

from pydantic import NonNegativeInt

from pytest_llmbench.core.record.curves import Curve
from pytest_llmbench.core.wire.answers import DeviceAnswer, ProbeAnswer


class MeasuredCollectives(DeviceAnswer):
    """The measurement of all ranks.

    Attributes:
        curves: by operation.
        unsupported: reasons of the backend for operations without one.
    """

    curves: Mapping[str, Curve]
    unsupported: Mapping[str, str]
    notes: tuple[str, ...]


class RankCollectives(ProbeAnswer):
    """The answer of one rank.

    Attributes:
        wrong: wrong elements at this rank by operation, for all that were measured.
        measured: the measurement, from rank 0; None from the others.
    """

    wrong: Mapping[str, NonNegativeInt]
    measured: MeasuredCollectives | None
