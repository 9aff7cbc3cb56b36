"""Evidence: the inputs of the sanity gate."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pytest_llmbench.core.recipe.expected import Expected
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.claims import Asked, ClaimName, SettingsCheck
from pytest_llmbench.core.record.records import Problem, ProblemKind
from pytest_llmbench.core.record.series import EarlyVerdict, RankInfo, StepSeries
from pytest_llmbench.core.wire import layout

# MUNGE credentials live for 5 minutes, so clocks of Slurm nodes that work together differ by less.
CLOCK_SKEW_S = 300.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Facts of a run's launch by its observer: its token, and Unix times; each None if unknown."""

    token: str | None = None
    launched: float | None = None
    ended: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """Inputs of the sanity rules."""

    recipe: Recipe
    topology: Topology  # nodes and ranks of the run
    series: StepSeries  # everything that was read from the logs
    hosts: tuple[str, ...]  # the nodes that were allocated to the run
    wall_s: float | None  # time from launch to end by the observer's own clock, seconds; None for logs made elsewhere
    gpu: str | None = None  # the GPU model of the system file; None if it lists none
    # `ranks` if every rank wrote our own step log, `command` if a framework's log is the only source
    kind: Literal["ranks", "command"] = "ranks"
    device: str | None = None  # device of a command's ranks by its driver; ranks of our own report theirs in the series
    proof: str = ""  # description of the line that proves that all work was done, for a message
    # How the run was cut off at its time limit by sources other than its log; None if unknown
    cut_off: str | None = None
    doubts: tuple[str, ...] = ()  # contradictions that the engine found in its log
    origin: Origin = field(default_factory=Origin)
    # Lowest and highest published dense peak of one of its GPUs at the recipe's precision, TFLOP/s; of fp32 without and
    # with TF32; None where unknown
    peak_tflops: tuple[float, float] | None = None
    expected: Expected | None = None  # expectations on ranks of our own; None for a command
    early: EarlyVerdict | None = None  # the looks at it before its end, if its session could end it early
    # Expected values of claims by the engine, which replace those of the recipe
    asks: Mapping[ClaimName, Asked] = field(default_factory=dict)
    compared: SettingsCheck = field(default_factory=SettingsCheck)  # settings of a log beside the recipe's

    @property
    def steps_due(self) -> int:
        """Number of steps that every rank has to log."""
        return self.early.done if self.early is not None and self.early.ended_early else self.recipe.steps


def problem(kind: ProblemKind, message: str, log: str | None = None) -> Problem:
    """Build a problem, with the path of the log to read first."""
    return Problem(kind=kind, message=message, log=log)


def of_rank(kind: ProblemKind, info: RankInfo, words: str) -> Problem:
    """Build a problem of one rank and its log; the message is the rank's name and host, then `words`."""
    return problem(kind, f"rank {info.rank} on {info.host}{words}", layout.step_log(info.rank))
