"""The dashboard for Grafana and the alerts for Prometheus: by a Prometheus that reads the metrics of sessions."""

import json
import re
import shutil
import socket
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_llmbench.core.files import write_text
from pytest_llmbench.core.record.records import Verdict
from pytest_llmbench.reporting.base import FinishedSession, read_finished
from pytest_llmbench.reporting.export import openmetrics, samples_of
from tests.support.waiting import wait_until

(RECORDED,) = (Path(__file__).parents[2] / "data" / "evidence").glob("2*")
FOLDER = Path(str(files("pytest_llmbench.reporting") / "grafana"))
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text())
RULES = [rule for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"] for rule in group["rules"]]


def filled(expression: str) -> str:
    """An expression of the dashboard with the choices of its variables."""
    return expression.replace("$statistic", "throughput_tokens_per_second").replace("$recipe", "tiny")


PANELS = {panel["title"]: [filled(target["expr"]) for target in panel["targets"]] for panel in DASHBOARD["panels"]}


@pytest.fixture
def session() -> FinishedSession:
    """A recorded session, of which a test of a run has failed."""
    read = read_finished(RECORDED)
    run = read.runs["tiny"]
    first, *others = run.judgements
    run = run.model_copy(
        update={
            "judgements": (
                first.model_copy(
                    update={
                        "verdict": Verdict.FAIL, "statistic": "throughput", "at_least": 9e8, "unit": "words/s",
                        "test": "test_x.py::test_speed[tiny-fast]",
                    }
                ),
                *others,
            )
        }
    )  # fmt: skip
    return FinishedSession(id=read.id, folder=read.folder, planned=read.planned, runs={"tiny": run}, checks=read.checks)


def test_every_metric_of_the_dashboard_is_exported(session: FinishedSession) -> None:
    names = {f"{sample.name}_{sample.unit}".removesuffix("_") for sample in samples_of(session)}
    expressions = [expression for panel in PANELS.values() for expression in panel]
    asked = re.findall(r"llmbench_\w+", " ".join([*expressions, *(rule["expr"] for rule in RULES)]))
    assert {*asked} <= names
    assert {panel["id"] for panel in DASHBOARD["panels"]} == {*range(1, len(DASHBOARD["panels"]) + 1)}
    assert [panel["title"] for panel in DASHBOARD["panels"] if panel.get("repeat") == "recipe"] == ["$recipe"]


@pytest.fixture
def prometheus(session: FinishedSession, tmp_path: Path) -> Iterator[str]:
    """The address of a Prometheus with our rules that has read the session's metrics."""
    if shutil.which("prometheus") is None or shutil.which("promtool") is None:
        pytest.skip("no prometheus and promtool here: apt-get install prometheus")
    (tmp_path / "web").mkdir()
    write_text(tmp_path / "web" / "metrics", openmetrics(samples_of(session)))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "web")))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    target = {"job_name": "node", "static_configs": [{"targets": [f"127.0.0.1:{server.server_port}"]}]}
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(FOLDER / "alerts.yaml")], "scrape_configs": [target],
    }  # fmt: skip
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    words = ["--config.file=prometheus.yml", f"--web.listen-address=127.0.0.1:{port}", "--storage.tsdb.path=data"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(["prometheus", *words], cwd=tmp_path, stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()
        server.shutdown()
        server.server_close()


class Quiet(SimpleHTTPRequestHandler):
    """A server that keeps the terminal free."""

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def asked(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return json.load(answer)["data"]


def test_prometheus_draws_the_dashboard_and_alerts(prometheus: str, session: FinishedSession) -> None:
    """Every panel has the session's numbers, and a failed test raises its alert."""
    subprocess.run(["promtool", "check", "rules", str(FOLDER / "alerts.yaml")], check=True, capture_output=True)

    def firing() -> set[str]:
        try:
            alerts = asked(f"{prometheus}/api/v1/alerts")["alerts"]
        except OSError:
            return set()
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    wait_until(lambda: "LlmbenchTestsFailed" in firing())

    def numbers(expression: str) -> list[float]:
        found = asked(f"{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': expression})}")["result"]
        return [float(each["value"][1]) for each in found]

    (measured,), bounds = map(numbers, PANELS["$recipe"])
    assert measured == pytest.approx(session.runs["tiny"].metrics["throughput"].value)
    assert 9e8 in bounds
    assert numbers(PANELS["Tests by verdict"][0])
    (ended,) = numbers(PANELS["Last session ended"][0])
    assert ended > 1.7e12  # Grafana's times are in ms
