"""The tables of a simulation, in Markdown."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.verdicts.calibrating import Tally
from benchmarks.verdicts.campaign import DISTANCES, OURS, Judged, Way
from benchmarks.verdicts.scenarios import SCENARIOS

MAY_BE_WRONG, CONFIDENCE = 0.01, 0.99
_QUIET = 0.005


def too_often(judged: Judged) -> bool:
    """More wrong verdicts than 1 % explains: a one-sided binomial test at 99 % confidence, of the worst bound."""
    from scipy import stats  # noqa: PLC0415  # a second of each start

    worst = int(judged.wrong[OURS].max())
    return bool(stats.binom.sf(worst - 1, judged.cell.runs, MAY_BE_WRONG) < 1 - CONFIDENCE)


def summary(judged: Sequence[Judged]) -> Iterator[str]:
    """Sentences over all cells of the domain."""
    within = [each for each in judged if each.cell.within_domain]
    rejected = [each for each in within if too_often(each)]
    above = [each for each in within if each.wrong[OURS].max() > MAY_BE_WRONG * each.cell.runs]
    verdicts = sum(len(DISTANCES) * each.cell.runs for each in within) or 1
    wrong = sum(int(each.wrong[OURS].sum()) for each in within)
    yield (
        f"{len(within)} cells within the domain, {verdicts:,} verdicts, {wrong:,} wrong ({wrong / verdicts:.3%}). "
        f"Cells whose worst bound has more than 1 % wrong: {len(above)}; by more than chance: {len(rejected)}."
    )
    for each in sorted(above, key=lambda each: -each.wrong[OURS].max())[:12]:
        worst = int(each.wrong[OURS].argmax())
        yield (
            f"- {each.cell.of.name}, {each.cell.way} steps, CV {each.cell.noise.cv:.2%}, φ {each.cell.noise.phi}, "
            f"bound at {DISTANCES[worst]:+.1%}: {each.wrong[OURS][worst] / each.cell.runs:.2%}"
        )


def by_rule(judged: Sequence[Judged], steps: int) -> Iterator[str]:
    """A row for each rule, a column for each kind of scenario: worst cell and mean."""
    mine = [each for each in judged if each.cell.way == Way(steps=steps)]
    groups = list(dict.fromkeys(scenario.group for scenario in SCENARIOS))
    yield from _head(f"Rule, {steps} steps", groups)
    for rule in dict.fromkeys(name for each in mine for name in each.wrong):
        yield _row(rule, [_worst_and_mean([e for e in mine if e.cell.of.group == group], rule) for group in groups])


def by_scenario(judged: Sequence[Judged]) -> Iterator[str]:
    """A row for each scenario, a column for each way to judge: worst cell and mean of our rule."""
    ways = list(dict.fromkeys(each.cell.way for each in judged))
    found = defaultdict(list)
    for each in judged:
        found[each.cell.of.name, each.cell.way].append(each)
    yield from _head("Scenario", [str(way) for way in ways])
    for scenario in SCENARIOS:
        cells = []
        for way in ways:
            here = found[scenario.name, way]
            text = _worst_and_mean(here, OURS)
            cells.append(text if not here or here[0].cell.within_domain else f"({text})")
        yield _row(scenario.name, cells)


def left_open(judged: Sequence[Judged]) -> Iterator[str]:
    """A row for each way to judge: share of clean runs without a verdict, by the distance of the bound."""
    clean = [each for each in judged if each.cell.of.name == "clean"]
    distances = [f"{distance:.1%}" for distance in DISTANCES[4:]]
    yield from _head("Clean runs", [f"{cv}, {d}" for cv in ("CV ≤ 0.5 %", "CV ≥ 2 %") for d in distances])
    for way in dict.fromkeys(each.cell.way for each in clean):
        mine = [each for each in clean if each.cell.way == way]
        cells = []
        for quiet in (True, False):
            some = [e.open / e.cell.runs for e in mine if (e.cell.noise.cv <= _QUIET) == quiet]
            both = np.mean(some, axis=0) if some else np.full(len(DISTANCES), np.nan)
            cells += [f"{(both[3 - i] + both[4 + i]) / 2:.0%}" for i in range(4)]
        yield _row(str(way), cells)


def early_steps(judged: Sequence[Judged]) -> Iterator[str]:
    """After how many steps a look decided."""
    early = [each for each in judged if each.steps is not None and each.cell.noise.cv <= _QUIET]
    yield from _head("Scenario, CV ≤ 0.5 %", ["2 % away", "5 % away"])
    for scenario in SCENARIOS:
        mine = [each.steps for each in early if each.cell.of.name == scenario.name]
        if mine:
            medians = np.median([each for each in mine if each is not None], axis=0)
            yield _row(scenario.name, [f"{max(medians[1], medians[6]):.0f}", f"{max(medians[0], medians[7]):.0f}"])


def calibration(tallies: Sequence[tuple[str, Tally]]) -> Iterator[str]:
    """A row for each kind of calibration."""
    yield from _head("Good runs", ["between runs", "healthy runs that fail", "2 % slower ones found", "refused"])
    for name, each in tallies:
        cells = [f"{each.between:.2%}", f"{each.missed:.2%}", f"{each.found:.2%}", f"{each.refused:.1%}"]
        yield _row(f"{each.runs}{name}", cells)


def _worst_and_mean(judged: Sequence[Judged], rule: str) -> str:
    shares = [each.wrong[rule] / each.cell.runs for each in judged if rule in each.wrong]
    return f"{_percent(float(np.max(shares)))} / {_percent(float(np.mean(shares)))}" if shares else ""


def _percent(share: float) -> str:
    return f"{100 * share:.3g}" if share >= 0.01 else f"{100 * share:.2f}"


def _head(first: str, rest: Sequence[str]) -> Iterator[str]:
    yield _row(first, rest)
    yield "|" + "---|" * (len(rest) + 1)


def _row(first: str, rest: Sequence[str]) -> str:
    return f"| {first} | {' | '.join(rest)} |"
