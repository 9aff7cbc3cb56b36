"""The evidence that the sanity gate looks at."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pytest_llmbench.core.recipe.expected import Expected
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.claims import Asked, ClaimName
from pytest_llmbench.core.record.early import EarlyVerdict
from pytest_llmbench.core.record.records import Problem, ProblemKind
from pytest_llmbench.core.record.series import RankInfo, StepSeries
from pytest_llmbench.core.wire import layout

# MUNGE credentials live for 5 minutes: daemons of Slurm whose clocks are further apart do not believe each other.
CLOCK_SKEW_S = 300.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Facts of a run's launch by its observer: its token, and Unix times; each None if unknown."""

    token: str | None = None
    launched: float | None = None
    ended: float | None = None


NOWHERE_KNOWN = Origin()


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """Inputs of the sanity rules.

    Attributes:
        kind: `ranks`, where every rank kept our own step log, or `command`, where a framework's log is all there is.
        hosts: the nodes the run was given.
        wall_s: time from launch to end by the observer's own clock, seconds; None for logs made elsewhere.
        gpu: the GPU model of the system file, None if it lists none.
        device: device of a command's ranks, as its driver found; ranks of our own report it themselves.
        proof: missing proof of the work, in words.
        cut_off: how the run was cut off at its time limit, as others than its log say; None if unknown.
        doubts: contradictions in its log that the engine finds.
        origin: of the run, as its launcher knows.
        peak_tflops: lowest and highest published dense peak of one of its GPUs at the recipe's precision, TFLOP/s; of
            fp32 without and with TF32; None where unknown.
        expected: expectations on ranks of our own; None for a command.
        early: the looks at it while it went on, if its session was to end it early.
        asks: values to compare a run's claims with, in addition to the recipe's own fields, or instead of them, from
            its engine.
    """

    recipe: Recipe
    topology: Topology
    series: StepSeries
    hosts: tuple[str, ...]
    wall_s: float | None
    gpu: str | None = None
    kind: Literal["ranks", "command"] = "ranks"
    device: str | None = None
    proof: str = ""
    cut_off: str | None = None
    doubts: tuple[str, ...] = ()
    origin: Origin = NOWHERE_KNOWN
    peak_tflops: tuple[float, float] | None = None
    expected: Expected | None = None
    early: EarlyVerdict | None = None
    asks: Mapping[ClaimName, Asked] = field(default_factory=dict)

    @property
    def steps_due(self) -> int:
        """Number of steps that every rank has to show."""
        return self.early.done if self.early is not None and self.early.ended_early else self.recipe.steps


def of_rank(kind: ProblemKind, info: RankInfo, said: str) -> Problem:
    """The problem that a rank's own log shows: the words of the message after the rank's name."""
    message = f"rank {info.rank} on {info.host}{said}"
    return Problem(kind=kind, message=message, log=layout.step_log(info.rank))
