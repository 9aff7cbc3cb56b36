"""The numbers of a session in each format, read back by the format's own reader."""

from __future__ import annotations

import csv
import json
import shutil
import socket
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
from pytest_llmbench.core.record.health import Finding, Severity
from pytest_llmbench.core.record.records import Metric, Verdict
from pytest_llmbench.export.openmetrics import openmetrics, write_metrics
from pytest_llmbench.export.otlp import ExportError, endpoint, send
from pytest_llmbench.export.samples import ExportedNumber, fitness, samples_of
from pytest_llmbench.export.sessions import read_finished
from pytest_llmbench.export.tables import COLUMNS, rows_of, write_csv, write_parquet
from pytest_llmbench.export.tensorboard import write_events
from pytest_llmbench.reporting.base import FinishedSession
from tests.support.collector import collector

(RECORDED,) = (Path(__file__).parents[2] / "data" / "evidence").glob("2*")


@pytest.fixture
def session() -> FinishedSession:
    """A recorded session."""
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


def named(samples: list[ExportedNumber], family: str) -> list[ExportedNumber]:
    """The samples of a family."""
    return [each for each in samples if each.family == family]


def test_openmetrics_is_read_by_both_parsers(session: FinishedSession, tmp_path: Path) -> None:
    """Every number is there once, in its base unit, by a name that ends in it."""
    write_metrics(session, tmp_path / "metrics" / "llmbench.prom")
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
    """Whatever is in it."""
    sample = ExportedNumber(name="a", unit="seconds", ucum="s", help=text, value=1.5, labels={"node": text})
    plain = sample.help.encode(errors="ignore").decode().replace("\r", "")
    told = ExportedNumber(name="a", unit="seconds", ucum="s", help=plain, value=1.5, labels={"node": plain})
    read: Callable[[str], Any] = openmetrics_parser.text_string_to_metric_families
    (family,) = read(openmetrics([told]))
    assert (family.samples[0].labels["node"], family.samples[0].value) == (plain, 1.5)


def test_a_missing_number_has_no_sample(session: FinishedSession) -> None:
    """Nor has one that is not finite, or of no known unit."""
    metrics = {
        "mfu": Metric(value=41.5, unit="%", rule="r"),
        "loss_drop": Metric(value=float("nan"), unit="nat", rule="r"),
        "odd": Metric(value=1.0, unit="apples", rule="r"),
    }
    run = session.runs["tiny"].model_copy(update={"metrics": metrics})
    (runs := dict(session.runs))["tiny"] = run
    samples = samples_of(FinishedSession(id="s", folder=RECORDED, planned=session.planned, runs=runs, checks={}))
    assert named(samples, "llmbench_run_mfu_ratio")[0].value == pytest.approx(0.415)
    families = {each.family for each in samples if each.name.startswith("llmbench_run_")}
    assert families == {"llmbench_run_judged", "llmbench_run_mfu_ratio"}
    assert not [each for each in samples if "node_fit" in each.name]


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
    """A missing number is an empty field."""
    written = write_csv(session, tmp_path)
    assert [path.stem for path in written] == list(COLUMNS)
    with (tmp_path / "statistics.csv").open(newline="") as file:
        rows = {row["statistic"]: row for row in csv.DictReader(file)}
    metrics = session.runs["tiny"].metrics
    assert {name: float(row["value"]) for name, row in rows.items()} == {n: m.value for n, m in metrics.items()}
    assert (rows["loss_drop"]["low"], float(rows["throughput"]["low"])) == ("", metrics["throughput"].low)
    with (tmp_path / "steps.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 24


def test_parquet_has_the_same_rows_with_types(session: FinishedSession, tmp_path: Path) -> None:
    """A missing number is null."""
    from pyarrow import parquet  # noqa: PLC0415  # it takes a tenth of a second

    for path in write_parquet(session, tmp_path):
        table = parquet.read_table(path)
        assert table.to_pylist() == [{n: row.get(n) for n in COLUMNS[path.stem]} for row in rows_of(session, path.stem)]
    assert str(table.schema.field("value").type) == "double"


def test_tensorboard_reads_every_step(session: FinishedSession, tmp_path: Path) -> None:
    """Written twice, each step is there once; a folder with something else in it is left alone."""
    from tensorboard.backend.event_processing.event_accumulator import (  # noqa: PLC0415  # it takes a second
        EventAccumulator,
    )

    write_events(session, tmp_path)
    (target,) = write_events(session, tmp_path)
    events = EventAccumulator(str(target))
    events.Reload()
    steps = session.runs["tiny"].steps
    assert [(each.step, each.value) for each in events.Scalars("step/loss")] == [
        (step.step, pytest.approx(step.loss)) for step in steps
    ]
    assert "statistic/throughput (words/s)" in events.Tags()["scalars"]
    (target / "mine.txt").write_text("kept")
    with pytest.raises(ConfigError, match=r"mine\.txt"):
        write_events(session, tmp_path)
    assert (target / "mine.txt").read_text() == "kept"


def test_otlp_is_read_by_its_own_messages(session: FinishedSession) -> None:
    """Every number with its unit and its labels, and the session as the resource."""
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (  # noqa: PLC0415  # of an extra
        ExportMetricsServiceRequest,
    )

    with collector() as (url, got):
        sent = send(session, url)
    told = ExportMetricsServiceRequest.FromString(got[0])
    (resource,) = told.resource_metrics
    about = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert about["llmbench.session"] == session.id
    metrics = {metric.name: metric for metric in resource.scope_metrics[0].metrics}
    assert sum(len(metric.gauge.data_points) for metric in metrics.values()) == sent == len(samples_of(session))
    throughput = metrics["llmbench_run_throughput_tokens_per_second"]
    (point,) = throughput.gauge.data_points
    assert (throughput.unit, point.as_double) == ("{token}/s", session.runs["tiny"].metrics["throughput"].value)
    assert {each.key: each.value.string_value for each in point.attributes}["run"] == "tiny"


def test_an_endpoint_that_fails_says_so_in_bounded_time(session: FinishedSession) -> None:
    """One that refuses, one where nothing listens, and one that never answers."""
    with collector(400) as (url, _), pytest.raises(ExportError, match=r"has not taken the numbers: .*400"):
        send(session, url)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ExportError, match="has not taken"):
            send(session, address, 0.3)  # nothing listens
        silent.listen()
        with pytest.raises(ExportError, match="has not taken"):
            send(session, address, 0.3)  # nothing answers


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://a:4318", "http://a:4318/v1/metrics"),
        ("https://a/", "https://a/v1/metrics"),
        ("http://a/otlp/v1/metrics", "http://a/otlp/v1/metrics"),
    ],
)
def test_an_address_without_a_path_gets_the_usual_one(url: str, target: str) -> None:
    """As collectors have it."""
    assert endpoint(url) == target


@pytest.mark.parametrize("url", ["", "a:4318", "ftp://a", "http://", "http://a:99999", "http://[", "file:///etc"])
def test_what_is_no_address_of_http_is_refused(url: str) -> None:
    """Before anything runs."""
    with pytest.raises(ConfigError, match="not an address"):
        endpoint(url)


def test_the_command_writes_what_it_is_asked_for(tmp_path: Path) -> None:
    """With JSON, and exit code 1 for an endpoint that fails."""
    done = CliRunner().invoke(app, ["export", "csv", str(RECORDED), "--output", str(tmp_path), "--json"])
    assert json.loads(done.output)["written"] == [str(tmp_path / f"{name}.csv") for name in COLUMNS]
    target = tmp_path / "llmbench.prom"
    done = CliRunner().invoke(app, ["export", "openmetrics", str(RECORDED), "--output", str(target)])
    assert (done.exit_code, done.output, parsed(target.read_text()) != {}) == (0, f"{target}\n", True)
    with collector(400) as (url, _):
        done = CliRunner().invoke(app, ["export", "otlp", str(RECORDED), "--url", url])
    assert (done.exit_code, done.output.startswith("NOT SENT: ")) == (1, True)
    for words in (["otlp", str(RECORDED)], ["csv", str(RECORDED), "--url", "http://a"], ["csv", str(tmp_path)]):
        assert isinstance(CliRunner().invoke(app, ["export", *words]).exception, ConfigError)


def test_a_session_without_records_has_no_numbers_but_its_counts(tmp_path: Path) -> None:
    """All of them are 0, which is true."""
    shutil.copy(RECORDED / "session.json", tmp_path)
    samples = samples_of(read_finished(tmp_path))
    assert {each.family for each in samples} == {"llmbench_tests"}
    assert len(samples) == len(Verdict)
