"""Batches: runs of one recipe on groups of nodes, in the file that the evaluator of its source writes."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from pytest_llmbench.core.files import make_folder
from pytest_llmbench.core.quantity import counted
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.core.wire import layout
from pytest_llmbench.engines.base import BatchLog, get_engine, on_machine, statistics_of
from pytest_llmbench.judging.references import Machine
from pytest_llmbench.reporting.base import FinishedSession
from pytest_llmbench.session.live.snapshot import worst


def report_batches(session: FinishedSession) -> Iterator[str]:
    """Write the evaluators' files, with a line for each run, into `batches/`: the report `batches`.

    Yields for each recipe whose source has an evaluator, and that has a bound to evaluate by, the evaluator's result on
    each run, then the verdict of our tests. Raises ConfigError if a log is unreadable, and OSError if writing a file
    fails.
    """
    folder = session.folder / "batches"
    by_recipe: dict[str, list[RunRecord]] = {}
    for run in sorted(session.planned.runs, key=lambda run: run.group or 0):
        if run.key in session.runs:
            by_recipe.setdefault(run.recipe.name, []).append(session.runs[run.key])
    for name, own in by_recipe.items():
        recipe, engine = own[0].recipe, get_engine(own[0].recipe.engine)
        bounds = [
            (reference, reference.at_least, _applies(reference, recipe, own)) for reference in recipe.references
            if reference.statistic == recipe.statistic_of_record and reference.at_least is not None
        ]  # fmt: skip
        if not bounds or engine.evaluate is None:
            continue
        reference, bound, applies = max(bounds, key=lambda each: each[2])  # the first that applies, else the first
        logs = [BatchLog(path=_log_of(record), hosts=record.hosts) for record in own]
        file = engine.evaluate(logs, bound.to(statistics_of(engine)[recipe.statistic_of_record].unit).value)
        make_folder(folder)
        (folder / f"{name}.csv").write_bytes(file)
        names, *rows = file.decode().splitlines()
        yield f"{name}: {counted(len(rows), 'run')}, success from {bound} on; {names} | verdict"
        if not applies:
            yield f"  that bound, {reference.name}, is for {reference.applies_to}, and not for these runs"
        for record, row in zip(own, rows, strict=True):
            # The verdict of the test of this bound; without such a test, the worst verdict on the run.
            verdicts = [judged.verdict for judged in record.judgements if judged.reference == reference.name]
            verdict = worst(verdicts or [judged.verdict for judged in record.judgements]) or "not judged"
            yield f"  {record.key}: {row} | {verdict}{f' ({record.problem.kind})' if record.problem else ''}"
        if any(record.problem for record in own):
            yield "  a run that cannot be judged is an ERROR here; there, one without a number is -1 and a Fail"
    if folder.exists():
        yield f"as the source's evaluator writes them: {folder}"


def _applies(reference: Reference, recipe: Recipe, records: Iterable[RunRecord]) -> bool:
    """True if a reference counts on the machine of every run whose machine is known."""
    machines = [
        Machine(
            system=record.system, device=record.device, gpus=record.gpus, nodes=record.nodes, scale=record.recipe.scale
        )
        for record in records if record.device is not None
    ]  # fmt: skip
    here = [on_machine(reference, recipe, machine) for machine in machines]
    return bool(here) and all(isinstance(reference, Reference) for reference in here)


def _log_of(record: RunRecord) -> Path:
    """The framework's log: that of a run of this session, or the replayed one."""
    place = Path(record.replayed or record.folder)
    if place.is_file():
        return place
    return next((path for path in sorted(place.glob("*.log"))), place / layout.OUTPUT)
