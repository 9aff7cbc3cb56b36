"""Batches: runs of one recipe on groups of nodes, in the file that the evaluator of its source writes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_llmbench.cluster.runs import RunSpec
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """The runs of one recipe in the order of their groups."""

    recipe: str  # name of the recipe
    records: tuple[RunRecord, ...]  # record of each run, with its verdicts
    reference: Reference  # a run succeeds from its lower bound on the statistic of record on
    applies: bool  # True if the reference is for the machine of these runs
    file: bytes  # CSV that the source's evaluator wrote, with a line for each run

    def describe(self) -> Iterator[str]:
        """Yield a line for each run: the evaluator's result, then the verdict of our tests."""
        names, *rows = self.file.decode().splitlines()
        runs = counted(len(rows), "run")
        yield f"{self.recipe}: {runs}, success from {self.reference.at_least} on; {names} | verdict"
        if not self.applies:
            yield f"  that bound, {self.reference.name}, is for {self.reference.applies_to}, and not for these runs"
        for record, row in zip(self.records, rows, strict=True):
            # The verdict of the test of this bound; without such a test, the worst verdict on the run.
            verdicts = [judged.verdict for judged in record.judgements if judged.reference == self.reference.name]
            verdicts = verdicts or [judged.verdict for judged in record.judgements]
            verdict = worst(verdicts) or "not judged"
            problem = f" ({record.problem.kind})" if record.problem else ""
            yield f"  {record.key}: {row} | {verdict}{problem}"
        if any(record.problem for record in self.records):
            yield "  a run that cannot be judged is an ERROR here; there, one without a number is -1 and a Fail"


def report_batches(session: FinishedSession) -> Iterator[str]:
    """Write the evaluators' files into `batches/`, and yield the lines of `Batch.describe`: the report `batches`.

    Raises ConfigError if a log is unreadable, and OSError if writing a file fails.
    """
    folder = session.folder / "batches"
    evaluated = evaluate_batches(session.planned.runs, session.runs)
    for batch in evaluated:
        make_folder(folder)
        (folder / f"{batch.recipe}.csv").write_bytes(batch.file)
        yield from batch.describe()
    if evaluated:
        yield f"as the source's evaluator writes them: {folder}"


def evaluate_batches(runs: Sequence[RunSpec], records: Mapping[str, RunRecord]) -> list[Batch]:
    """Evaluate the runs of each recipe whose source has an evaluator, and that has a bound to evaluate by.

    Raises ConfigError if a log is unreadable.
    """
    by_recipe: dict[str, list[RunRecord]] = {}
    for run in sorted(runs, key=lambda run: run.group or 0):
        if run.key in records:
            by_recipe.setdefault(run.recipe.name, []).append(records[run.key])
    batches = []
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
        batches.append(Batch(recipe=name, records=tuple(own), reference=reference, applies=applies, file=file))
    return batches


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
