"""Simulated runs, judged: how many verdicts are wrong, and how many are left open."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

import numpy as np

from benchmarks.verdicts.rules import wrong_by_former
from benchmarks.verdicts.scenarios import SCENARIOS, SKIP, Array, Noise, Runs, Scenario, noise
from pytest_llmbench.core.record.steady import Steady
from pytest_llmbench.judging.interval.early import at_a_look, looks
from pytest_llmbench.judging.interval.repeats import pool, share_of_look
from pytest_llmbench.judging.interval.steady import steady_state

# Distance of the bound from the truth, as a share of it; negative for a bound that the run misses.
DISTANCES = np.array([-0.05, -0.02, -0.01, -0.005, 0.005, 0.01, 0.02, 0.05])
WRONG = ("fast_enough",) * 4 + ("too_slow",) * 4
DECIDED = {"fast_enough", "too_slow"}
OURS = "**interval**"


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """How runs are measured and judged."""

    steps: int  # of a run, warm-up included
    line: int = 1  # steps of which a line of the log is the mean
    early: bool = False  # judged at looks while the run goes on
    repeats: int = 1  # runs that are judged together
    rerun: bool = False  # `repeats` is the most; twice as many at each look, until one decides

    def __str__(self) -> str:
        """A head for a column."""
        words = (f"{self.steps}", f" in {self.line}s" * (self.line > 1), " early" * self.early)
        return "".join(words) + f", {'1 to ' * self.rerun}{self.repeats} runs" * (self.repeats > 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """Runs of one kind."""

    scenario: int  # its position in `SCENARIOS`
    noise: Noise
    way: Way
    runs: int  # how many verdicts are given at each bound
    seed: int

    @property
    def of(self) -> Scenario:
        """How its runs behave."""
        return SCENARIOS[self.scenario]

    @property
    def within_domain(self) -> bool:
        """The rule claims to hold here."""
        foreseen = self.of.foreseen or not self.way.early
        known = self.of.alone or self.way.repeats > 1
        return foreseen and known and self.of.holds(self.way.steps, self.noise)


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """Verdicts on the runs of a cell."""

    cell: Cell
    wrong: dict[str, Array]  # number of wrong verdicts at each of `DISTANCES`, by rule
    open: Array  # number of runs left without a verdict by our rule, at each
    steps: Array | None = None  # median number of steps after which our rule decided, at each; of early looks


def simulate(cell: Cell) -> Judged:
    """Make the runs of a cell and judge them."""
    runs = runs_of(cell)
    if cell.way.early:
        return _early(cell, runs)
    if cell.way.rerun:
        return _made_again(cell, runs)
    if cell.way.repeats > 1:
        return _repeated(cell, runs)
    return _whole(cell, runs)


def written(judged: Judged) -> str:
    """One line of JSON."""
    counts = {rule: wrong.tolist() for rule, wrong in judged.wrong.items()}
    steps = None if judged.steps is None else judged.steps.tolist()
    return json.dumps({"cell": asdict(judged.cell), "wrong": counts, "open": judged.open.tolist(), "steps": steps})


def read(line: str) -> Judged:
    """What `written` wrote."""
    each = json.loads(line)
    cell = each["cell"]
    steps = None if each["steps"] is None else np.array(each["steps"])
    return Judged(
        cell=Cell(**{**cell, "way": Way(**cell["way"]), "noise": Noise(**cell["noise"])}),
        wrong={rule: np.array(wrong) for rule, wrong in each["wrong"].items()},
        open=np.array(each["open"]),
        steps=steps,
    )


def runs_of(cell: Cell) -> Runs:
    """Make the runs of a cell: always the same ones."""
    key = [cell.seed, cell.scenario, cell.way.steps, round(cell.noise.cv * 1e5), round(cell.noise.phi * 100)]
    rng = np.random.default_rng(key)
    steps = noise(rng, cell.of, cell.noise, cell.runs * cell.way.repeats, cell.way.steps)
    return cell.of.make(rng, steps, cell.noise)


def _whole(cell: Cell, runs: Runs) -> Judged:
    line = cell.way.line
    lines, skip = cell.way.steps // line, -(-SKIP // line)
    read = runs.seconds[:, : lines * line].reshape(cell.runs, lines, line).mean(axis=2)
    truth = runs.truth
    if line > 1 and runs.pauses is not None:
        truth = runs.pauses[:, skip * line : lines * line].mean(axis=1)
    states = (steady_state(each, steps_of_a_line=line) for each in map(np.ndarray.tolist, read[:, skip:]))
    if cell.of.system:
        states = (pool([state]) for state in states)
    wrong, left_open = _count(states, truth)
    former = wrong_by_former(runs.seconds, runs.truth, DISTANCES) if line == 1 else {}
    return Judged(cell=cell, wrong={**former, OURS: wrong}, open=left_open)


def _repeated(cell: Cell, runs: Runs) -> Judged:
    each = [steady_state(seconds) for seconds in map(np.ndarray.tolist, runs.seconds[:, SKIP:])]
    pools = (pool(each[i : i + cell.way.repeats]) for i in range(0, len(each), cell.way.repeats))
    wrong, left_open = _count(pools, runs.truth[: cell.runs])
    return Judged(cell=cell, wrong={OURS: wrong}, open=left_open)


def _made_again(cell: Cell, runs: Runs) -> Judged:
    """Twice as many runs at each look: the worst case of `--llmbench-inconclusive rerun`, which gives up earlier."""
    wrong, left_open = np.zeros(len(DISTANCES), int), np.zeros(len(DISTANCES), int)
    seconds, most = runs.seconds[:, SKIP:].tolist(), cell.way.repeats
    for first, truth in zip(range(0, len(seconds), most), runs.truth.tolist(), strict=False):
        left = set(range(len(DISTANCES)))
        for look in range(most.bit_length()):
            alpha = share_of_look(look)
            made = [steady_state(each, alpha=alpha) for each in seconds[first : first + 2**look]]
            together = pool(made, alpha=alpha)
            for i in sorted(left):
                verdict = together.decide(truth * (1 + DISTANCES[i]))
                if verdict in DECIDED:
                    wrong[i] += verdict == WRONG[i]
                    left.discard(i)
            if not left:
                break
        for i in left:
            left_open[i] += 1
    return Judged(cell=cell, wrong={OURS: wrong}, open=left_open)


def _count(states: Iterable[Steady], truth: Array) -> tuple[Array, Array]:
    """Count wrong verdicts, and runs without one, at each distance."""
    wrong, left_open = np.zeros(len(DISTANCES), int), np.zeros(len(DISTANCES), int)
    for state, bounds in zip(states, (truth[:, None] * (1 + DISTANCES)).tolist(), strict=True):
        for i, bound in enumerate(bounds):
            verdict = state.decide(bound)
            if verdict == WRONG[i]:
                wrong[i] += 1
            elif verdict not in DECIDED:
                left_open[i] += 1
    return wrong, left_open


def _early(cell: Cell, runs: Runs) -> Judged:
    plan = cell.way.steps
    wrong, left_open = np.zeros(len(DISTANCES), int), np.zeros(len(DISTANCES), int)
    took: list[list[int]] = [[] for _ in DISTANCES]
    for seconds, truth in zip(runs.seconds.tolist(), runs.truth.tolist(), strict=True):
        left = set(range(len(DISTANCES)))
        for steps in looks(plan, SKIP):
            state = at_a_look(seconds[SKIP:steps], plan=plan - SKIP)
            for i in sorted(left):
                bound = truth * (1 + DISTANCES[i])
                verdict = state.decide(bound)
                if verdict in DECIDED:
                    wrong[i] += verdict == WRONG[i]
                    took[i].append(steps)
                    left.discard(i)
            if not left:
                break
        for i in left:
            left_open[i] += 1
            took[i].append(plan)
    return Judged(cell=cell, wrong={OURS: wrong}, open=left_open, steps=np.array([np.median(each) for each in took]))
