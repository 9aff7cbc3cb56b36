"""Batches: the runs of one recipe on groups of nodes, as the evaluator of the recipe's source writes them to a file."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_llmbench.cluster.runs import RunSpec
from pytest_llmbench.core.files import make_folder
from pytest_llmbench.core.quantity import Quantity, counted
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.records import RunRecord, Verdict
from pytest_llmbench.core.wire import layout
from pytest_llmbench.engines.base import BatchLog, Evaluate, get_engine, statistics_of
from pytest_llmbench.judging.references import Machine, why_not_applicable
from pytest_llmbench.reporting.base import FinishedSession

_WORST_FIRST = (Verdict.ERROR, Verdict.FAIL, Verdict.XFAIL, Verdict.INCONCLUSIVE, Verdict.PASS, Verdict.SKIP)


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """The runs of one recipe in the order of their groups.

    Attributes:
        recipe: name of the recipe.
        records: record of each run, with its verdicts.
        reference: a run succeeds from its lower bound on the statistic of record on.
        applies: True if the reference is for the machine of these runs.
        file: CSV that the source's evaluator wrote, with a line for each run.
    """

    recipe: str
    records: tuple[RunRecord, ...]
    reference: Reference
    applies: bool
    file: bytes

    def describe(self) -> Iterator[str]:
        """Yield a line for each run: the evaluator's result, then the verdict of our tests."""
        names, *rows = self.file.decode().splitlines()
        runs = counted(len(rows), "run")
        yield f"{self.recipe}: {runs}, success from {self.reference.at_least} on; {names} | verdict"
        if not self.applies:
            yield f"  that bound, {self.reference.name}, is for {self.reference.applies_to}, and not for these runs"
        for record, row in zip(self.records, rows, strict=True):
            verdict = _verdict(record, self.reference)
            problem = f" ({record.problem.kind})" if record.problem else ""
            yield f"  {record.key}: {row} | {verdict or 'not judged'}{problem}"
        if any(record.problem for record in self.records):
            yield "  a run that cannot be judged is an ERROR here; there, one without a number is -1 and a Fail"


def report_batches(session: FinishedSession) -> Iterator[str]:
    """Write the evaluators' files into `batches/`, and yield the lines of `Batch.describe`: the report `batches`.

    Raises:
        ConfigError: a log is unreadable.
        OSError: writing a file failed.
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

    Raises:
        ConfigError: a log is unreadable.
    """
    by_recipe: dict[str, list[RunSpec]] = {}
    for run in runs:
        if run.key in records and get_engine(run.recipe.engine).evaluate is not None:
            by_recipe.setdefault(run.recipe.name, []).append(run)
    groups = {name: sorted(specs, key=lambda run: run.group or 0) for name, specs in by_recipe.items()}
    evaluated = (_batch(name, [records[run.key] for run in specs]) for name, specs in groups.items())
    return [batch for batch in evaluated if batch is not None]


def _batch(name: str, records: Sequence[RunRecord]) -> Batch | None:
    recipe = records[0].recipe
    engine = get_engine(recipe.engine)
    lower = [
        reference for reference in recipe.references
        if reference.statistic == recipe.statistic_of_record and reference.at_least is not None
    ]  # fmt: skip
    if not lower or engine.evaluate is None:
        return None
    fitting = [reference for reference in lower if _applies(reference, records)]
    reference = (fitting or lower)[0]
    unit = statistics_of(engine)[recipe.statistic_of_record].unit
    return Batch(
        recipe=name,
        records=tuple(records),
        reference=reference,
        applies=bool(fitting),
        file=_evaluate(engine.evaluate, records, reference.at_least, unit),
    )


def _applies(reference: Reference, records: Iterable[RunRecord]) -> bool:
    """True if a reference is for the machine of every run whose machine is known."""
    machines = [
        Machine(
            system=record.system, device=record.device, gpus=record.gpus, nodes=record.nodes, scale=record.recipe.scale
        )
        for record in records if record.device is not None
    ]  # fmt: skip
    return bool(machines) and all(why_not_applicable(reference, machine) is None for machine in machines)


def _evaluate(evaluate: Evaluate, records: Iterable[RunRecord], bound: Quantity | None, unit: str) -> bytes:
    threshold = bound.to(unit).value if bound is not None else 0.0
    return evaluate([BatchLog(path=_log_of(record), hosts=record.hosts) for record in records], threshold)


def _log_of(record: RunRecord) -> Path:
    """The framework's log: that of a run of this session, or the replayed one."""
    place = Path(record.replayed or record.folder)
    if place.is_file():
        return place
    return next((path for path in sorted(place.glob("*.log"))), place / layout.OUTPUT)


def _verdict(record: RunRecord, reference: Reference) -> str:
    """The verdict of the test of this bound; without such a test, the worst verdict on the run."""
    of_bound = {judgement.verdict for judgement in record.judgements if judgement.reference == reference.name}
    ends = of_bound or {judgement.verdict for judgement in record.judgements}
    return next((verdict for verdict in _WORST_FIRST if verdict in ends), "")
