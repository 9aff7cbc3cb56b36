"""The numbers of a session in each format, read back by the format's own reader."""

import csv
import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics_parser
from typer.testing import CliRunner

from pytest_llmbench.cli.app import app
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.files import write_text
from pytest_llmbench.core.record.health import Finding, Severity
from pytest_llmbench.core.record.records import Metric, RecordedClause, SessionVerdicts, Verdict, write_model
from pytest_llmbench.core.record.telemetry import GpuTelemetry
from pytest_llmbench.core.wire import layout
from pytest_llmbench.reporting.base import FinishedSession, read_finished
from pytest_llmbench.reporting.export import COLUMNS, Sample, fitness, openmetrics, samples_of, write_csv
from pytest_llmbench.session.folder import read_plan

(RECORDED,) = (Path(__file__).parents[2] / "data" / "evidence").glob("2*")


@pytest.fixture
def session() -> FinishedSession:
    return read_finished(RECORDED)


def parsed(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """A text as both parsers of Prometheus read it, which must agree."""
    readers: tuple[Callable[[str], Any], ...] = (
        openmetrics_parser.text_string_to_metric_families,
        parser.text_string_to_metric_families,
    )
    told = [
        {(s.name, tuple(sorted(s.labels.items()))): s.value for family in read(text) for s in family.samples}
        for read in readers
    ]
    assert told[0] == told[1]
    return told[0]


def test_openmetrics_is_read_by_both_parsers(session: FinishedSession, tmp_path: Path) -> None:
    """Every number is there once, in its base unit, by a name that ends in it."""
    write_text(tmp_path / "metrics" / "llmbench.prom", openmetrics(samples_of(session)))
    found = parsed((tmp_path / "metrics" / "llmbench.prom").read_text())
    run = (("recipe", "tiny"), ("run", "tiny"), ("system", "here"))
    metrics = session.runs["tiny"].metrics
    assert found["llmbench_run_throughput_tokens_per_second", run] == metrics["throughput"].value
    assert found["llmbench_run_peak_memory_bytes", run] == metrics["peak_memory"].value * 2**30
    assert found["llmbench_run_samples_per_second", run] == metrics["samples_per_s"].value
    assert found["llmbench_tests", (("verdict", "PASS"),)] == 5
    assert found["llmbench_tests", (("verdict", "INCOMPLETE"),)] == 0
    host = session.checks["memory"].hosts[0]
    assert found["llmbench_node_fit", (("node", host), ("system", "here"))] == 1
    assert len(found) == len(samples_of(session))
    assert list((tmp_path / "metrics").iterdir()) == [tmp_path / "metrics" / "llmbench.prom"]


@settings(max_examples=25)
@given(st.text(max_size=30))
def test_a_label_is_read_back_as_it_was(text: str) -> None:
    plain = text.encode(errors="ignore").decode().replace("\r", "")
    sample = Sample("a", "seconds", plain, 1.5, {"node": plain})
    read: Callable[[str], Any] = openmetrics_parser.text_string_to_metric_families
    (family,) = read(openmetrics([sample]))
    assert (family.samples[0].labels["node"], family.samples[0].value) == (plain, 1.5)


def test_a_missing_number_has_no_sample(session: FinishedSession) -> None:
    metrics = {
        "mfu": Metric(value=41.5, unit="%", rule="r"),
        "loss_drop": Metric(value=float("nan"), unit="nat", rule="r"),
        "odd": Metric(value=1.0, unit="apples", rule="r"),
    }
    run = session.runs["tiny"].model_copy(update={"metrics": metrics})
    (runs := dict(session.runs))["tiny"] = run
    samples = samples_of(FinishedSession(id="s", folder=RECORDED, planned=session.planned, runs=runs, checks={}))
    values = {(each.name, each.unit): each.value for each in samples if each.name.startswith("llmbench_run_")}
    assert values == {("llmbench_run_judged", ""): 1, ("llmbench_run_mfu", "ratio"): pytest.approx(0.415)}
    assert not [each for each in samples if "node_fit" in each.name]


def test_an_unknown_energy_has_a_reason(session: FinishedSession, tmp_path: Path) -> None:
    """Of a run on GPUs alone; it is never 0."""
    changes = {"gpus": 2, "telemetry": (GpuTelemetry(rank=0, gpu="a", gaps=("its energy counter stood still",)),)}
    run = session.runs["tiny"].model_copy(update=changes)
    whole = FinishedSession(id="s", folder=RECORDED, planned=session.planned, runs={"tiny": run}, checks={})
    reason = "telemetry of its GPUs is incomplete: 1 ranks report 2 GPUs, and 1 more"
    (unknown,) = (each for each in samples_of(whole) if "energy" in each.name)
    assert (unknown.name, unknown.labels["reason"]) == ("llmbench_run_energy_unknown", reason)
    write_csv(whole, tmp_path)
    with (tmp_path / "statistics.csv").open(newline="") as file:
        (row,) = (row for row in csv.DictReader(file) if row["statistic"] == "energy_per_token")
    assert (row["value"], row["unit"], row["reason"]) == ("", "J/token", reason)
    assert not [each for each in samples_of(session) if "energy" in each.name]


def test_a_node_is_fit_only_if_every_check_judged_it(session: FinishedSession) -> None:
    """One with a fault, or without an answer, is not; of one that no check has judged nothing is known."""
    memory = session.checks["memory"]
    (host,) = memory.hosts

    def fit(**report: Any) -> dict[str, bool]:
        changed = memory.model_copy(update={"report": memory.report.model_copy(update=report)})
        return fitness({"disk": session.checks["disk"], "memory": changed})

    assert fit() == {host: True}
    fault = Finding(host=host, kind="memory", severity=Severity.ISOLATE, message="gone")
    assert fit(findings=(fault,)) == {host: False}
    assert fit(unjudged={host: "silent"}) == {host: False}
    assert fit(problem="it broke") == {}
    assert (
        fitness({"memory": memory.model_copy(update={"report": memory.report.model_copy(update={"skip": "x"})})}) == {}
    )


def test_csv_has_every_row(session: FinishedSession, tmp_path: Path) -> None:
    written = write_csv(session, tmp_path)
    assert [path.stem for path in written] == list(COLUMNS)
    with (tmp_path / "statistics.csv").open(newline="") as file:
        rows = {row["statistic"]: row for row in csv.DictReader(file)}
    metrics = session.runs["tiny"].metrics
    assert {name: float(row["value"]) for name, row in rows.items()} == {n: m.value for n, m in metrics.items()}
    assert (rows["loss_drop"]["low"], float(rows["throughput"]["low"])) == ("", metrics["throughput"].low)
    with (tmp_path / "steps.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 24


def test_the_command_writes_what_it_is_asked_for(tmp_path: Path) -> None:
    """Paths on the terminal or as JSON; a folder without a session is a usage error."""
    done = CliRunner().invoke(app, ["report", str(RECORDED), "--format", "csv", "--output", str(tmp_path), "--json"])
    assert json.loads(done.stdout)["written"] == [str(tmp_path / f"{name}.csv") for name in COLUMNS]
    target = tmp_path / "llmbench.prom"
    done = CliRunner().invoke(app, ["report", str(RECORDED), "--format", "openmetrics", "--output", str(target)])
    assert (done.exit_code, done.stdout, parsed(target.read_text()) != {}) == (0, f"{target}\n", True)
    assert isinstance(CliRunner().invoke(app, ["report", str(tmp_path), "--format", "csv"]).exception, ConfigError)


def test_a_test_without_a_record_is_counted(tmp_path: Path) -> None:
    """One without a verdict is an ERROR, as of a session that was killed; an INCOMPLETE clause counts as a test."""
    shutil.copy(RECORDED / "session.json", tmp_path)

    def counts() -> dict[str, int]:
        samples = samples_of(read_finished(tmp_path))
        assert {each.name for each in samples} == {"llmbench_tests"}
        assert len(samples) == len(Verdict)
        write_csv(read_finished(tmp_path), tmp_path / "csv")
        with (tmp_path / "csv" / "verdicts.csv").open(newline="") as file:
            verdicts = Counter(row["verdict"] for row in csv.DictReader(file))
        assert verdicts == {each.labels["verdict"]: each.value for each in samples if each.value}
        return dict(verdicts)

    first, second, *others = (test.test for test in read_plan(tmp_path).tests)
    assert counts() == {"ERROR": 2 + len(others)}
    clause = RecordedClause(name="4.1", tests=("t",), verdict=Verdict.INCOMPLETE, reason="it was skipped")
    rows = ({"test": first, "verdict": "SKIP"}, {"test": second, "verdict": "torn"}, {"test": "g", "verdict": "FAIL"})
    write_model(tmp_path / layout.VERDICTS, SessionVerdicts(session="s", tests=rows, clauses=(clause,)))
    assert counts() == {"ERROR": 1 + len(others), "SKIP": 1, "FAIL": 1, "INCOMPLETE": 1}
