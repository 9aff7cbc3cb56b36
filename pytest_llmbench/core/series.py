"""What a run logged, in order: its ranks, its steps, and what could not be read."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_llmbench.core.schema import Strict


class RankInfo(Strict):
    """One rank, as it introduced itself.

    Attributes:
        device: `cpu`, or the GPU's name as the driver gives it.
        matmul_flops_per_s: measured dense matrix-product rate of this rank's device, FLOP/s, all
            ranks of the run measuring at once.
        ended: whether the rank said that it finished its last step.
        versions: software versions the rank runs with.
        failure: the error that ended the rank, in its own words.
        failed_at: Unix time of that error: the first of several ranks is usually the cause.
    """

    rank: int
    host: str
    pid: int
    local_rank: int
    device: str
    versions: Mapping[str, str]
    matmul_flops_per_s: float | None = None
    ended: bool = False
    failure: str | None = None
    failed_at: float | None = None


class Step(Strict):
    """One optimizer step of the whole run.

    Attributes:
        step: 1-based number.
        seconds: duration, the longest of all ranks.
        tokens: tokens of all ranks (a word is a token).
        samples: sequences of all ranks.
        loss: mean over ranks, nat per token; may be NaN or infinite.
        grad_norm: L2 norm of the gradient before clipping; may be NaN or infinite.
        peak_memory_bytes: highest of all ranks since the start, None where it is not measured.
        ranks: how many ranks logged it.
    """

    step: int
    seconds: float
    tokens: int
    samples: int
    loss: float
    grad_norm: float
    peak_memory_bytes: int | None
    ranks: int


class StepSeries(Strict):
    """Everything one run logged.

    Attributes:
        ranks: by rank, those that introduced themselves.
        steps: in order; a step some rank did not log is here with `ranks` below the world size.
        unreadable: `file:line: why` for every line that should have been a step and could not be read.
    """

    ranks: tuple[RankInfo, ...] = ()
    steps: tuple[Step, ...] = ()
    unreadable: tuple[str, ...] = ()
