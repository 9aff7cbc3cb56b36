"""The hooks and the script of the guide: a session in MLflow, in Weights & Biases, and in a channel."""

import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.conftest import UserFolder
from tests.docs.documents import CHECKOUT, read_blocks
from tests.support.standin import RECIPE, log_at_hand

PAGE = "docs/how-to/results/send-results-elsewhere.md"
BLOCKS = {block.what: block.text for block in read_blocks(PAGE, (CHECKOUT / PAGE).read_text()) if block.kind == "file"}
FAST = {
    "name": "fast", "statistic": "throughput", "at_least": "900M words/s", "why": "w", "source": "s",
    "date": "2026-11-27",
}  # fmt: skip
# As strict as the real ones: names of MLflow are of these characters, and a metric is a number.
MLFLOW = """
import contextlib, json, pathlib, re
sent = []
def keep(kind, given, **more):
    assert all(re.fullmatch(r"[/\\w.\\- :]{1,250}", name) for name in given), given
    sent.append([kind, {name: str(value) for name, value in given.items()}, more])
    pathlib.Path("mlflow.json").write_text(json.dumps(sent))
def set_experiment(name): keep("experiment", {name: ""})
@contextlib.contextmanager
def start_run(*, run_name):
    keep("run", {}, run_name=run_name)
    yield
def log_params(params): keep("params", params)
def set_tags(tags): keep("tags", tags)
def log_metrics(metrics, step=None):
    assert all(isinstance(value, (int, float)) for value in metrics.values()), metrics
    keep("metrics", metrics, step=step)
"""
WANDB = """
import json, pathlib
class Run:
    def __init__(self, given): self.given, self.steps, self.summary = given, [], {}
    def __enter__(self): return self
    def __exit__(self, *_):
        pathlib.Path("wandb.json").write_text(json.dumps([self.given, self.steps, self.summary]))
    def log(self, data, step): self.steps.append([step, data])
def init(*, project, group, name, config): return Run({"project": project, "group": group, "name": name, **config})
"""


@pytest.fixture
def judged(user: UserFolder, monkeypatch: pytest.MonkeyPatch) -> UserFolder:
    """A user with one FAIL, whose session went through both hooks."""
    log_at_hand(user, **{**RECIPE, "references": [FAST | {"applies_to": {"system": "elsewhere"}}]})
    for name, text in (*BLOCKS.items(), ("mlflow.py", MLFLOW), ("wandb.py", WANDB)):
        (user.path / name).write_text(text)
    monkeypatch.syspath_prepend(str(user.path))
    result = user.run_here("--llmbench-replay", "logs", "-p", "mlflow_hook", "-p", "wandb_hook", code=1)
    assert "could not be made" not in result.text
    return user


def test_mlflow_and_wandb_get_numbers_steps_and_verdicts(judged: UserFolder) -> None:
    assert judged.session is not None
    record = json.loads((judged.session / "runs" / "tiny" / "record.json").read_text())
    sent: list[Any] = json.loads((judged.path / "mlflow.json").read_text())
    assert ["run", {}, {"run_name": f"tiny {judged.session.name}"}] in sent
    assert ["tags", {"verdict.throughput": "FAIL"}, {}] in sent
    (whole, *steps) = [each for each in sent if each[0] == "metrics"]
    assert whole[1]["throughput"] == str(record["metrics"]["throughput"]["value"])
    assert [each[2]["step"] for each in steps] == [step["step"] for step in record["steps"]]
    about, logged, summary = json.loads((judged.path / "wandb.json").read_text())
    assert (about["group"], about["name"], about["recipe"]) == (judged.session.name, "tiny", "tiny")
    assert [step for step, _ in logged] == [step["step"] for step in record["steps"]]
    assert summary["verdict/throughput"] == "FAIL"


@pytest.mark.parametrize(("path", "teams"), [("services/T0/B0/x", False), ("powerplatform/workflows/x", True)])
def test_a_channel_gets_the_verdict(judged: UserFolder, path: str, *, teams: bool) -> None:
    got: list[Any] = []

    class Channel(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Channel) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        env = {**os.environ, "WEBHOOK_URL": f"http://127.0.0.1:{server.server_port}/{path}"}
        subprocess.run([sys.executable, "notify.py"], cwd=judged.path, env=env, check=True)
        server.shutdown()
    (body,) = got
    text = body["attachments"][0]["content"]["body"][0]["text"] if teams else body["text"]
    assert text.startswith("# Cluster verdict: slow\n")
    assert re.search(r"^1 FAIL\. Exit code 1", text, re.MULTILINE)
    assert "|" not in text
