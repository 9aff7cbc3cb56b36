"""The numbers of a session as named samples in base units: what every format of monitoring is made of."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pytest_llmbench import __version__
from pytest_llmbench.core.errors import UnitError
from pytest_llmbench.core.quantity import UNITS, Quantity
from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.records import Record, RunRecord, Verdict
from pytest_llmbench.core.text import harmless
from pytest_llmbench.reporting.base import FinishedSession

# The unit in a name, and that of UCUM, by dimension; values are in the dimension's base unit.
_BASES: Mapping[str, tuple[str, str]] = {
    "token rate": ("tokens_per_second", "{token}/s"),
    "token rate per GPU": ("tokens_per_second_per_gpu", "{token}/s/{gpu}"),
    "sample rate": ("samples_per_second", "{sample}/s"),
    "time": ("seconds", "s"),
    "compute rate": ("flop_per_second", "{flop}/s"),
    "compute rate per GPU": ("flop_per_second_per_gpu", "{flop}/s/{gpu}"),
    "size": ("bytes", "By"),
    "bandwidth": ("bytes_per_second", "By/s"),
    "operation rate": ("operations_per_second", "{operation}/s"),
    "power": ("watts", "W"),
    "energy per token": ("joules_per_token", "J/{token}"),
    "tokens per energy": ("tokens_per_joule", "{token}/J"),
    "temperature": ("celsius", "Cel"),
    "frequency": ("hertz", "Hz"),
    "fraction": ("ratio", "1"),
    "loss": ("nats", "{nat}"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportedNumber:
    """One number.

    Attributes:
        name: of its family, without the unit: small letters, digits and `_`. Families may differ in their units alone.
        unit: the unit as the last part of a name has it; empty for a count.
        ucum: the unit as UCUM writes it.
        help: meaning of the family.
        value: in that unit; a finite number.
        labels: its run, check or node.
    """

    name: str
    unit: str
    ucum: str
    help: str
    value: float
    labels: Mapping[str, str]

    @property
    def family(self) -> str:
        """The whole name."""
        return f"{self.name}_{self.unit}" if self.unit else self.name


def samples_of(session: FinishedSession) -> list[ExportedNumber]:
    """Every number of a session. A number that is missing has no sample: a 0 in its place would be averaged."""
    found = [*_about_session(session)]
    for run in session.runs.values():
        found += _of_run(run)
    for check in session.checks.values():
        found += _of_check(check)
    found += _fitness(session)
    unique = {(each.family, tuple(sorted(each.labels.items()))): each for each in found}
    return list(unique.values())


def fitness(checks: Mapping[str, HealthRecord]) -> dict[str, bool]:
    """Whether each node may train, by name. A node that some check has not judged is not there: nothing is known."""
    hosts = {host for check in checks.values() for host in check.hosts}
    unfit = {host for check in checks.values() for host in check.unfit()}
    judged = {
        host
        for host in hosts
        if all(check.report.problem is None for check in checks.values())
        and any(
            host in check.hosts and host not in check.report.skipped and check.report.skip is None
            for check in checks.values()
        )
    }
    return {host: host not in unfit for host in sorted(judged | (unfit & hosts))}


def _about_session(session: FinishedSession) -> Iterator[ExportedNumber]:
    records: list[Record] = [*session.runs.values(), *session.checks.values()]
    systems = {(record.system, str(record.cluster)) for record in records}
    for system, cluster in sorted(systems):
        labels = {"session": session.id, "system": system, "cluster": cluster, "version": __version__}
        yield _count("llmbench_session", "The session that the other numbers are of.", 1, labels)
    verdicts = {each.test: str(each.verdict) for record in records for each in record.judgements}
    counts = Counter(verdicts.values())
    for verdict in Verdict:
        told = "Tests of the session by their verdict."
        yield _count("llmbench_tests", told, counts[str(verdict)], {"verdict": str(verdict)})
    ends = [record.timings.ended for record in records if record.timings.ended is not None]
    if ends:
        told = "Unix time at which the last run or check of the session ended."
        yield ExportedNumber(
            name="llmbench_session_end_timestamp", unit="seconds", ucum="s", help=told, value=max(ends), labels={}
        )


def _of_run(record: RunRecord) -> Iterator[ExportedNumber]:
    labels = {"run": record.key, "recipe": record.recipe.name, "system": record.system}
    told = "Whether a run could be judged: it finished, is sane and was measured."
    yield _count("llmbench_run_judged", told, int(record.problem is None), labels)
    for name, metric in record.metrics.items():
        told = f"Statistic {name} of a run."
        yield from _in_base_unit(f"llmbench_run_{name}", told, metric.value, metric.unit, labels)


def _of_check(record: HealthRecord) -> Iterator[ExportedNumber]:
    for reading in record.report.readings:
        labels = {
            "check": record.check, "node": reading.host or "", "subject": reading.subject, "system": record.system,
        }  # fmt: skip
        told = f"Measured {reading.statistic} of a check."
        yield from _in_base_unit(f"llmbench_check_{reading.statistic}", told, reading.value, reading.unit, labels)


def _fitness(session: FinishedSession) -> Iterator[ExportedNumber]:
    told = "Whether a node may train according to every check: 1, or 0."
    systems = {record.system for record in session.checks.values()}
    for host, fit in fitness(session.checks).items():
        yield _count("llmbench_node_fit", told, int(fit), {"node": host, "system": min(systems)})


def _in_base_unit(name: str, told: str, value: float, unit: str, labels: Mapping[str, str]) -> Iterator[ExportedNumber]:
    try:
        base, (suffix, ucum) = Quantity(value, unit).base, _BASES[UNITS[unit][0]]
    except (UnitError, KeyError):
        return  # not finite, or of a unit that nobody could convert
    plain = re.sub("[^a-z0-9_]", "_", name.lower())
    # Not `samples_per_s_samples_per_second`.
    plain = re.sub(rf"_{suffix}$", "", re.sub(r"_per_s(_|$)", r"_per_second\1", plain)) or plain
    yield ExportedNumber(name=plain, unit=suffix, ucum=ucum, help=told, value=base, labels=_labels(labels))


def _count(name: str, told: str, value: int, labels: Mapping[str, str]) -> ExportedNumber:
    return ExportedNumber(name=name, unit="", ucum="1", help=told, value=value, labels=_labels(labels))


def _labels(labels: Mapping[str, str]) -> dict[str, str]:
    return {name: harmless(text) for name, text in labels.items()}
