"""A threshold from good runs of one recipe on one machine, as a system's file takes it.

    python -m pytest_llmbench.calibrate reports/*/runs/opt125m/record.json

The guide "Calibrate a threshold" has the rule, and the records that it refuses.
"""

import argparse
import datetime as dt
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from pytest_llmbench.cluster.system import ELSEWHERE, LOCAL, SLURM
from pytest_llmbench.core.errors import ConfigError, LLMBenchError, unknown
from pytest_llmbench.core.files import write_text
from pytest_llmbench.core.quantity import Quantity, counted, listed
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.core.schema import validate
from pytest_llmbench.core.wire import layout
from pytest_llmbench.engines.base import get_engine, statistics_of
from pytest_llmbench.judging.agreement import decimals
from pytest_llmbench.judging.golden import golden_losses
from pytest_llmbench.judging.good_runs import (
    LEAST_RUNS,
    GoodRun,
    doubts,
    machine_of,
    refuse_unfit,
    refuse_unlike,
)
from pytest_llmbench.judging.interval.calibration import Calibrated, calibrate
from pytest_llmbench.judging.interval.decide import decide
from pytest_llmbench.judging.statistics import Statistic
from pytest_llmbench.session.folder import record_files_below

# Systems without a file: their names stand for any machine.
_NAMELESS = {LOCAL, SLURM, ELSEWHERE}


def main(arguments: Sequence[str] | None = None, prog: str = "python -m pytest_llmbench.calibrate") -> int:
    """Run the command; the exit code is 0, or 2 for records that it refuses."""
    options = _parser(prog).parse_args(arguments)
    try:
        text, warnings = golden_file(options) if options.losses else calibrated_file(options)
        if options.output is not None:
            if options.output.exists():
                raise ConfigError(f"{options.output} exists already: give another --output")
            write_text(options.output, text)
    except (LLMBenchError, OSError) as error:
        sys.stderr.write("".join(f"error: {line}\n" for line in str(error).splitlines()))
        return 2
    sys.stderr.write("".join(f"warning: {line}\n" for line in warnings))
    if options.output is None:
        sys.stdout.write(text)
    return 0


def calibrated_file(options: argparse.Namespace) -> tuple[str, list[str]]:
    """The references as YAML or JSON, and warnings about them.

    Raises:
        ConfigError: the records must be those of good runs of one recipe on one machine.
    """
    runs = _runs(options.records, options.recipe)
    recipe = runs[0].record.recipe
    statistics = statistics_of(get_engine(recipe.engine))
    wanted = list(dict.fromkeys(options.statistic or [recipe.statistic_of_record]))
    for name in wanted:
        if name not in statistics or not statistics[name].of_speed:
            legal = [known for known, statistic in statistics.items() if statistic.of_speed]
            raise ConfigError(unknown("statistic of speed", name, legal))
    refuse_unfit(runs, statistics, wanted)
    warnings = list(doubts(runs, statistics))
    references = []
    for name in wanted:
        reference, doubtful = _reference(runs, name, statistics[name], options, alone=len(wanted) == 1)
        references.append(reference)
        warnings += doubtful
    if options.json:
        plain = [reference.model_dump(mode="json", exclude_defaults=True) for reference in references]
        document = {"system": runs[0].record.system, "references": {recipe.name: plain}, "warnings": warnings}
        return f"{json.dumps(document, indent=1)}\n", warnings
    block = {"references": {recipe.name: [reference.model_dump(exclude_defaults=True) for reference in references]}}
    text = yaml.safe_dump(block, sort_keys=False, allow_unicode=True, width=110, default_flow_style=None)
    return f"# For the file of system {runs[0].record.system}; or put the entry below the recipe.\n{text}", warnings


def golden_file(options: argparse.Namespace) -> tuple[str, list[str]]:
    """Golden losses as JSON, and warnings about them.

    Raises:
        ConfigError: the records must be those of repeats of one training.
    """
    runs = _runs(options.records, options.recipe)
    refuse_unlike(runs)
    engine = get_engine(runs[0].record.recipe.engine)
    printed = [step.loss for step in runs[0].record.steps if step.loss is not None]
    # A framework prints a few digits of its losses; ours have all bits.
    resolution = 0.0 if engine.kind == "ranks" else 10.0 ** -max(map(decimals, printed), default=0)
    today = dt.date.today().isoformat()  # noqa: DTZ011
    golden = golden_losses({run.id: run.record for run in runs}, today, resolution)
    return f"{golden.model_dump_json(indent=1)}\n", [*doubts(runs, statistics_of(engine))]


def _reference(
    runs: Sequence[GoodRun], name: str, statistic: Statistic, options: argparse.Namespace, *, alone: bool
) -> tuple[Reference, list[str]]:
    """One reference, and warnings about it."""
    is_time = Quantity(0.0, statistic.unit).dimension == "time"
    try:
        result = calibrate([run.value(name, statistic) for run in runs], lower_is_better=is_time, less=options.less)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from error
    kept = [run for number, run in enumerate(runs) if number not in result.left_out]
    outliers = f"outliers {', '.join(runs[number].id for number in result.left_out)}" if result.left_out else ""
    if len(kept) < LEAST_RUNS:
        raise ConfigError(f"{name}: without {outliers} {len(kept)} runs are left, and it takes {LEAST_RUNS}: give more")
    machine = machine_of(runs[0].record, _NAMELESS)
    label = f"calibrated_{name}_{machine.gpus or machine.nodes}"
    if options.name is not None:
        label = options.name if alone else f"{options.name}_{name}"
    slow, fast = ("at_most", "at_least") if is_time else ("at_least", "at_most")
    bounds = {slow: Quantity(result.bound, statistic.unit).shown(6)}
    method, mean = result.method[0].upper() + result.method[1:], Quantity(result.mean, statistic.unit)
    reason = (
        f"{method}: {mean} in the mean, {100 * result.spread:.2g} % between runs, so the bound is "
        f"{100 * result.margin:.2g} % from it."
    )
    if outliers:
        reason += f" Not counted: {outliers}."
    if options.too_fast is not None:
        too_fast = _too_fast(result, options.too_fast, is_time=is_time)
        bounds[fast] = Quantity(too_fast, statistic.unit).shown(6)
        reason += f" A run {100 * options.too_fast:g} % faster than their mean has not trained this recipe."
    facts = {
        "name": label, "statistic": name, **bounds, "claim": "run", "why": reason, "source": _source(kept),
        "date": dt.date.today(), "applies_to": machine.model_dump(exclude_none=True),  # noqa: DTZ011
    }  # fmt: skip
    reference = validate(Reference, facts, label)
    warnings = [f"{name}: not counted: {outliers}. Find out why they differ"] if outliers else []
    if result.margin < result.least_margin:
        warnings.append(
            f"{name}: with a margin of {100 * result.margin:.2g} % a healthy run misses the bound in "
            f"{100 * result.false_alarm:.2g} % of cases: give at least {100 * result.least_margin:.2g} % for 1 %"
        )
    return reference, [*warnings, *_own_verdicts(kept, reference, statistic)]


def _too_fast(result: Calibrated, share: float, *, is_time: bool) -> float:
    if share < result.least_margin:
        raise ConfigError(
            f"--too-fast {100 * share:g} %: healthy runs are faster than that in more than 1 % of cases: give at least "
            f"{100 * result.least_margin:.2g} %, better 10 %"
        )
    return result.mean * (1 - share if is_time else 1 + share)


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
                holds = decide(metric, [run.measurement.steady], op, bound, reference.between).holds
            if not holds:
                ends.setdefault("INCONCLUSIVE" if holds is None else "FAIL", []).append(run.id)
    return [
        f"{reference.name}: {len(ids)} of its own {len(runs)} runs would be {verdict}: {listed(ids)}"
        for verdict, ids in ends.items()
    ]


def _runs(given: Sequence[Path], recipe: str | None) -> list[GoodRun]:
    """The runs of all records that are named, or lie in a folder of reports."""
    files = [path for place in given for path in ([place] if place.is_file() else _below(place))]
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


def _below(folder: Path) -> list[Path]:
    if not (files := record_files_below(folder, "run")):
        raise ConfigError(f"{folder}: no run record (runs/*/{layout.RECORD}) is there, nor in a folder below it")
    return files


def _share(text: str) -> float:
    try:
        share = Quantity(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if share.dimension != "fraction" or not 0.0 < share.base < 1.0:
        raise argparse.ArgumentTypeError(f"{text} is not a share between 0 and 100 %, such as '5 %'")
    return share.base


def _parser(prog: str) -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog=prog, description=__doc__, formatter_class=raw)
    add: Callable[..., Any] = parser.add_argument
    add("records", nargs="+", type=Path, metavar="RECORD", help="run records, or folders of reports with some in them")
    add("--recipe", metavar="NAME", help="take this recipe's runs alone, where folders have more")
    add("--statistic", action="append", metavar="NAME", help="statistic of speed, repeatable; else the recipe's own")
    add("--less", type=_share, metavar="SHARE", help="a plain margin such as '5 %%', not the 99 %% prediction limit")
    add("--too-fast", type=_share, metavar="SHARE", help="bound the other side too, so far from the mean")
    add("--losses", action="store_true", help="write golden losses as JSON, and no threshold")
    add("--json", action="store_true", help="write JSON for programs, and not YAML for the system's file")
    add("--name", help="name of the reference; by default calibrated_STATISTIC_GPUS")
    add("--output", type=Path, metavar="FILE", help="a new file to write it to; by default the terminal")
    return parser


if __name__ == "__main__":
    sys.exit(main())
