"""Simulated runs, judged: how many verdicts are wrong, and how many are left open."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from benchmarks.verdicts.rules import wrong_by_former
from benchmarks.verdicts.scenarios import SCENARIOS, SKIP, Array, Noise, Runs, Scenario, noise
from pytest_llmbench.judging.interval.early import at_a_look, looks
from pytest_llmbench.judging.interval.steady import BETWEEN_RUNS, steady_state

# Of the bound from the truth, as a share of it: a bound below it is one that the run misses.
DISTANCES = np.array([-0.05, -0.02, -0.01, -0.005, 0.005, 0.01, 0.02, 0.05])
OURS, EARLY = "interval", "early looks"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """Runs of one kind.

    Attributes:
        scenario: its position in `SCENARIOS`.
        steps: of a run, warm-up included.
        line: steps of which a line of the log is the mean.
        early: judged at looks while the run goes on.
    """

    scenario: int
    steps: int
    noise: Noise
    line: int = 1
    early: bool = False
    runs: int
    seed: int

    @property
    def of(self) -> Scenario:
        """How its runs behave."""
        return SCENARIOS[self.scenario]

    @property
    def within_domain(self) -> bool:
        """The rule claims to hold here."""
        return self.of.holds(self.steps, self.noise)


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """Verdicts on the runs of a cell.

    Attributes:
        wrong: number of wrong verdicts at each of `DISTANCES`, by rule.
        open: number of runs left without a verdict by our rule, at each.
        reasons: how often each reason for that was given.
        steps: median number of steps after which our rule decided, at each; of early looks.
    """

    cell: Cell
    wrong: dict[str, Array]
    open: Array
    reasons: Counter[str] = field(default_factory=Counter)
    steps: Array | None = None


def simulate(cell: Cell) -> Judged:
    """Make the runs of a cell and judge them."""
    runs = runs_of(cell)
    return _early(cell, runs) if cell.early else _whole(cell, runs)


def runs_of(cell: Cell) -> Runs:
    """Make the runs of a cell: always the same ones."""
    key = [cell.seed, cell.scenario, cell.steps, round(cell.noise.cv * 1e5), round(cell.noise.phi * 100)]
    rng = np.random.default_rng(key)
    return cell.of.make(rng, noise(rng, cell.of, cell.noise, cell.runs, cell.steps), cell.noise)


def _whole(cell: Cell, runs: Runs) -> Judged:
    wrong, open_ = np.zeros(len(DISTANCES), int), np.zeros(len(DISTANCES), int)
    reasons: Counter[str] = Counter()
    lines = cell.steps // cell.line
    read = runs.seconds[:, : lines * cell.line].reshape(cell.runs, lines, cell.line).mean(axis=2)
    skip = -(-SKIP // cell.line)
    truths = runs.truth
    if cell.line > 1 and runs.pauses is not None:
        truths = runs.pauses[:, skip * cell.line : lines * cell.line].mean(axis=1)
    between = BETWEEN_RUNS if cell.of.system else None
    for seconds, truth in zip(read.tolist(), truths.tolist(), strict=True):
        state = steady_state(seconds, skip=skip, steps_of_a_line=cell.line, between_runs=between)
        for i, distance in enumerate(DISTANCES):
            verdict = state.decide(truth * (1 + distance))
            if verdict == ("fast_enough" if distance < 0 else "too_slow"):
                wrong[i] += 1
            elif verdict not in {"fast_enough", "too_slow"}:
                open_[i] += 1
                reasons[verdict] += 1
    former = wrong_by_former(runs.seconds, runs.truth, DISTANCES) if cell.line == 1 else {}
    return Judged(cell=cell, wrong={**former, OURS: wrong}, open=open_, reasons=reasons)


def _early(cell: Cell, runs: Runs) -> Judged:
    wrong, open_ = np.zeros(len(DISTANCES), int), np.zeros(len(DISTANCES), int)
    took: list[list[int]] = [[] for _ in DISTANCES]
    for seconds, truth in zip(runs.seconds.tolist(), runs.truth.tolist(), strict=True):
        left = set(range(len(DISTANCES)))
        for steps in looks(cell.steps, SKIP):
            state = at_a_look(seconds[:steps], plan=cell.steps, skip=SKIP)
            for i in sorted(left):
                verdict = state.decide(truth * (1 + DISTANCES[i]))
                if verdict in {"fast_enough", "too_slow"}:
                    wrong[i] += verdict == ("fast_enough" if DISTANCES[i] < 0 else "too_slow")
                    took[i].append(steps)
                    left.discard(i)
            if not left:
                break
        for i in left:
            open_[i] += 1
            took[i].append(cell.steps)
    return Judged(cell=cell, wrong={EARLY: wrong}, open=open_, steps=np.array([np.median(each) for each in took]))
