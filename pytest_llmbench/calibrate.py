"""A threshold from good runs of one recipe on one machine, for `llmbench calibrate`.

The guide "Calibrate a threshold" has the rule, and the records that it refuses.
"""

import datetime as dt
from collections.abc import Sequence
from pathlib import Path

from pytest_llmbench.cluster.system import ELSEWHERE, LOCAL, SLURM
from pytest_llmbench.core.errors import ConfigError, unknown
from pytest_llmbench.core.quantity import Quantity, counted, listed
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.core.schema import validate
from pytest_llmbench.core.wire import layout
from pytest_llmbench.engines.base import get_engine, statistics_of
from pytest_llmbench.judging.agreement import decimals
from pytest_llmbench.judging.golden import GoldenLosses, golden_losses
from pytest_llmbench.judging.good_runs import (
    LEAST_RUNS,
    GoodRun,
    doubts,
    machine_of,
    refuse_unfit,
    refuse_unlike,
)
from pytest_llmbench.judging.interval.calibration import calibrate
from pytest_llmbench.judging.interval.decide import decide, with_own_rule
from pytest_llmbench.judging.statistics import Statistic
from pytest_llmbench.session.folder import record_files_below

# Systems without a file: their names stand for any machine.
_NAMELESS = {LOCAL, SLURM, ELSEWHERE}


def calibrate_references(
    runs: Sequence[GoodRun], statistics: Sequence[str], less: float | None, too_fast: float | None, name: str | None
) -> tuple[list[Reference], list[str]]:
    """Make a reference for each statistic, and warnings about them.

    Args:
        runs: good runs of one recipe on one machine.
        statistics: names of statistics of speed; without any, the recipe's own.
        less: a plain margin as a share, instead of the prediction limit.
        too_fast: share of the mean from which on a run is too fast; None without such a bound.
        name: of the reference, with the statistic if there are several; None for the usual name.

    Raises ConfigError if a run is unfit, or unlike the others.
    """
    recipe = runs[0].record.recipe
    known = statistics_of(get_engine(recipe.engine))
    wanted = [*dict.fromkeys(statistics or [recipe.statistic_of_record])]
    for statistic in wanted:
        if statistic not in known or not known[statistic].of_speed:
            legal = [legal for legal in known if known[legal].of_speed]
            raise ConfigError(unknown("statistic of speed", statistic, legal))
    refuse_unfit(runs, known, wanted)
    references, warnings = [], [*doubts(runs, known)]
    for statistic in wanted:
        label = name if name is None or len(wanted) == 1 else f"{name}_{statistic}"
        reference, doubtful = _reference(runs, statistic, known[statistic], less, too_fast, label)
        references.append(reference)
        warnings += doubtful
    return references, warnings


def calibrate_losses(runs: Sequence[GoodRun]) -> tuple[GoldenLosses, list[str]]:
    """Make golden losses from repeats of one training, and warnings about them.

    Raises ConfigError if a run is unlike the others.
    """
    refuse_unlike(runs)
    engine = get_engine(runs[0].record.recipe.engine)
    printed = [step.loss for step in runs[0].record.steps if step.loss is not None]
    # A framework prints a few digits of its losses; ours have all bits.
    resolution = 0.0 if engine.kind == "ranks" else 10.0 ** -max(map(decimals, printed), default=0)
    today = dt.date.today().isoformat()  # noqa: DTZ011
    golden = golden_losses({run.id: run.record for run in runs}, today, resolution)
    return golden, [*doubts(runs, statistics_of(engine))]


def _reference(
    runs: Sequence[GoodRun],
    name: str,
    statistic: Statistic,
    less: float | None,
    too_fast: float | None,
    label: str | None,
) -> tuple[Reference, list[str]]:
    is_time = Quantity(0.0, statistic.unit).dimension == "time"
    try:
        result = calibrate([run.value(name, statistic) for run in runs], lower_is_better=is_time, less=less)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from error
    kept = [run for number, run in enumerate(runs) if number not in result.left_out]
    outliers = f"outliers {', '.join(runs[number].id for number in result.left_out)}" if result.left_out else ""
    if len(kept) < LEAST_RUNS:
        raise ConfigError(f"{name}: without {outliers} {len(kept)} runs are left, and it takes {LEAST_RUNS}: give more")
    machine = machine_of(runs[0].record, _NAMELESS)
    label = label or f"calibrated_{name}_{machine.gpus or machine.nodes}"
    slow, fast = ("at_most", "at_least") if is_time else ("at_least", "at_most")
    bounds = {slow: Quantity(result.bound, statistic.unit).shown(6)}
    method, mean = result.method[0].upper() + result.method[1:], Quantity(result.mean, statistic.unit)
    reason = (
        f"{method}: {mean} in the mean, {100 * result.spread:.2g} % between runs, so the bound is "
        f"{100 * result.margin:.2g} % from it."
    )
    if outliers:
        reason += f" Not counted: {outliers}."
    if too_fast is not None:
        if too_fast < result.least_margin:
            raise ConfigError(
                f"--too-fast {100 * too_fast:g} %: healthy runs are faster than that in more than 1 % of cases: give "
                f"at least {100 * result.least_margin:.2g} %, better 10 %"
            )
        limit = result.mean * (1 - too_fast if is_time else 1 + too_fast)
        bounds[fast] = Quantity(limit, statistic.unit).shown(6)
        reason += f" A run {100 * too_fast:g} % faster than their mean has not trained this recipe."
    facts = {
        "name": label, "statistic": name, **bounds, "claim": "run", "runs": len(kept), "why": reason,
        "source": _source(kept), "date": dt.date.today(), "applies_to": machine.model_dump(exclude_none=True),  # noqa: DTZ011
    }  # fmt: skip
    reference = validate(Reference, facts, label)
    warnings = [f"{name}: not counted: {outliers}. Find out why they differ"] if outliers else []
    if result.margin < result.least_margin:
        warnings.append(
            f"{name}: with a margin of {100 * result.margin:.2g} % a healthy run misses the bound in "
            f"{100 * result.false_alarm:.2g} % of cases: give at least {100 * result.least_margin:.2g} % for 1 %"
        )
    return reference, [*warnings, *_own_verdicts(kept, reference, statistic)]


def _source(runs: Sequence[GoodRun]) -> str:
    """The runs, their days and their software."""
    ends = [end for run in runs if (end := run.record.timings.ended) is not None]
    days = sorted({dt.datetime.fromtimestamp(end, dt.UTC).date().isoformat() for end in ends})
    when = f" of {days[0]}" + (f" to {days[-1]}" if len(days) > 1 else "") if days else ""
    versions = runs[0].record.versions
    software = ", ".join(f"{name} {versions[name]}" for name in ("torch", "driver") if name in versions)
    named = listed((run.id for run in runs), most=12)
    return f"calibrated with {counted(len(runs), 'run')}{when}: {named}" + (f" ({software})" if software else "")


def _own_verdicts(runs: Sequence[GoodRun], reference: Reference, statistic: Statistic) -> list[str]:
    """Warnings of verdicts other than PASS on the runs that the bounds are made of."""
    ends: dict[str, list[str]] = {}
    for run in runs:
        metric = run.metric(reference.statistic, statistic)
        for op, bound in reference.bounds:
            holds: bool | None = metric.quantity.meets(op, bound)
            if metric.sense is not None:
                decision = decide(metric, [run.measurement.steady], op, bound, reference.between)
                holds = (decision if statistic.steady else with_own_rule(decision, metric, op, bound)).holds
            if not holds:
                ends.setdefault("INCONCLUSIVE" if holds is None else "FAIL", []).append(run.id)
    return [
        f"{reference.name}: {len(ids)} of its own {len(runs)} runs would be {verdict}: {listed(ids)}"
        for verdict, ids in ends.items()
    ]


def read_runs(given: Sequence[Path], recipe: str | None) -> list[GoodRun]:
    """Read all records that are named, or lie in a folder of reports: those of one recipe.

    Raises ConfigError if a record is unreadable or missing, or records of several recipes leave the choice open.
    """
    files = []
    for place in given:
        records = [place] if place.is_file() else record_files_below(place, "run")
        if not records:
            raise ConfigError(f"{place}: no run record (runs/*/{layout.RECORD}) is there, nor in a folder below it")
        files += records
    # A shell's `reports/*` names the folder of the latest session twice: as itself, and by the link `latest`.
    named = {path.absolute() for path in files}
    paths = [path for path in files if path.absolute() == (real := path.resolve()) or real not in named]
    runs = [GoodRun(path, RunRecord.read(path)) for path in paths]
    chosen = [run for run in runs if recipe in {None, run.record.recipe.name}]
    names = {run.record.recipe.name for run in runs}
    if not chosen:
        raise ConfigError(unknown("recipe", recipe, names))
    if len(names) > 1 and recipe is None:
        raise ConfigError(f"these are runs of {', '.join(sorted(names))}: choose one recipe with --recipe")
    return chosen
