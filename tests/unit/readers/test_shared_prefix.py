"""Logs with the prefix of a collector before each line: they say what they say without it."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from pytest_llmbench.core.record.series import StepSeries
from pytest_llmbench.engines.deepspeed_chat import log as deepspeed_chat
from pytest_llmbench.engines.megatron_lm import log as megatron_lm
from pytest_llmbench.engines.metaseq import log as metaseq
from pytest_llmbench.engines.nemo import log as nemo
from pytest_llmbench.readers.log import read_log
from pytest_llmbench.readers.shared_prefix import find_shared_prefix
from tests.support.samples import DATA, middle_left_out

READERS = {
    "deepspeed_chat_step1.log": deepspeed_chat.READER, "deepspeed_chat_step3.log": deepspeed_chat.READER,
    "megatron_lm_4_ranks.log": megatron_lm.READER, "megatron_lm_core_0.16.log": megatron_lm.READER,
    "metaseq_2_ranks.log": metaseq.READER, "nemo_2.log": nemo.READER,
}  # fmt: skip

COLLECTORS: dict[str, Callable[[int], str]] = {
    "kubectl --prefix": lambda _: "[pod/llm-worker-0/pytorch] ",
    "stern": lambda _: "llm-worker-0 pytorch ",
    "stern --timestamps": lambda n: f"llm-worker-0 pytorch 2026-11-26T10:{n // 60 % 60:02}:{n % 60:02}.{n:09}+01:00 ",
    "kubetail": lambda _: "[llm-worker-7d9f8c-xk2lp] ",
    "two pods": lambda n: f"[pod/llm-{('7d9f8c-xk2lp', '66b5-aaq1z')[n % 2]}/pytorch] ",
    "two hosts": lambda n: f"{('login', 'gpu017')[n % 2]} | ",
    "docker compose": lambda _: "trainer-1  | ",
    "docker compose --timestamps": lambda n: f"trainer-1  | 2026-11-26T10:00:{n % 60:02}.{n:09}Z ",
    "docker service": lambda _: "train.1.x2kd93lak@gpu01    | ",
    "journald": lambda n: f"Nov 26 10:{n // 60 % 60:02}:{n % 60:02} gpu01 bash[1234]: ",
    "journald short-iso": lambda n: f"2026-11-26T10:00:{n % 60:02}+0100 gpu01 python3[77]: ",
    "ts": lambda n: f"Nov 26 10:{n // 60 % 60:02}:{n % 60:02} ",
    "ts -s": lambda n: f"00:{n // 60 % 60:02}:{n % 60:02} ",
    "GitLab": lambda n: f"2026-11-26T10:00:{n % 60:02}.{n:06}Z 01O ",
    "GitHub": lambda n: f"2026-11-26T10:00:{n % 60:02}.{n:07}Z ",
    "Jenkins": lambda n: f"[2026-11-26T10:00:{n % 60:02}.{n % 1000:03}Z] ",
    "Jenkins timestamper": lambda n: f"10:{n // 60 % 60:02}:{n % 60:02}  ",
    "SageMaker": lambda n: f"[my-train-1] [2026-11-26 10:00:{n % 60:02},{n % 1000:03}] [INFO] ",
    "SageMaker algo": lambda _: "[1,mpirank:0,algo-1]<stdout>:",
    "CloudWatch ms": lambda n: f"{1764151200000 + n}\t",
    "CloudWatch tail": lambda n: f"2026-11-26T10:00:{n % 60:02} llm-train/default/7f3a9c ",
    "Python logging": lambda n: f"2026-11-26 10:00:{n % 60:02},{n % 1000:03} - trainer - INFO - ",
    "Python logging, levels": lambda n: (
        f"2026-11-26 10:00:{n % 60:02},123 {'WARNING' if n % 5 == 0 else 'INFO'} root: "
    ),
    "basicConfig": lambda _: "INFO:root:",
    "loguru": lambda n: f"2026-11-26 10:00:{n % 60:02}.{n % 1000:03} | INFO     | train.launch:pump:{n % 90} - ",
    "Rich": lambda n: f"[10:00:{n % 60:02}] INFO     ",
    "absl": lambda n: f"I1126 10:00:{n % 60:02}.{n:06} 140231 launcher.py:{n % 90}] ",
    "Primus": lambda n: f"[20261126 10:00:{n % 60:02}][rank-15/16][INFO ] [--------trainer.py:{n % 90}] : ",
    "torchrun with a time": lambda n: f"[2026-11-26 10:00:{n % 60:02}] [default0]:",
    "a notebook": lambda _: "    ",
    "a quotation": lambda _: "> ",
    "fluentd": lambda n: f"2026-11-26 10:00:{n % 60:02}.{n:09} +0000 kube.train: ",
    "Loki": lambda n: f"2026-11-26 10:00:{n % 60:02}\tINFO\ttrain-0\t",
    "Datadog": lambda n: f"2026-11-26 10:00:{n % 60:02} UTC | gpu01 | INFO | ",
    "Azure ML": lambda n: f"2026-11-26T10:00:{n % 60:02}.{n:07} [node-0] ",
    "Vertex AI": lambda n: f"INFO 2026-11-26 10:00:{n % 60:02} +0000 workerpool0-0 ",
    "Ansible": lambda _: "gpu01 | CHANGED | rc=0 >> ",
    "salt": lambda _: "        stdout: ",
    "syslog": lambda n: f"<14>1 2026-11-26T10:00:{n % 60:02}.{n % 1000:03}Z gpu01 bash 1234 - - ",
    "CRI-O": lambda n: f"2026-11-26T10:00:{n % 60:02}.{n:09}Z stdout F ",
    "Nomad": lambda _: "[alloc 7d9f8c12] (stderr) ",
    "journald short-full": lambda n: f"Thu 2026-11-26 10:00:{n % 60:02} UTC gpu01 llm-train.service[77]: ",
    "Buildkite": lambda n: f"\x1b_bk;t={1764151200000 + n}\x07",
    "logfmt": lambda n: f"time=2026-11-26T10:00:{n % 60:02}Z level=info msg=",
}
# A collector that writes an object around each line.
WRAPPERS: dict[str, Callable[[str], str]] = {
    "Docker": lambda line: json.dumps({"log": f"{line}\n", "stream": "stdout", "time": "2026-11-26T10:00:00Z"}),
    "journalctl -o json": lambda line: json.dumps({"_HOSTNAME": "gpu01", "MESSAGE": line, "PRIORITY": "6"}),
    "Fluentd": lambda line: f"2026-11-26 10:00:00 +0000 kube.train: {json.dumps({'pod': {'n': 1}, 'message': line})}",
    "logfmt": lambda line: f"ts=2026-11-26T10:00:00Z caller=main.go:9 msg={json.dumps(line)} component=train",
}


def said(lines: list[str], log: str, folder: Path) -> StepSeries:
    (folder / log).write_text("".join(f"{line}\n" for line in lines), newline="")
    return read_log([folder / log], (reader := READERS[log]).dialect(), reader.claims, reader.needles)


@cache
def lines_of(log: str) -> list[str]:
    return middle_left_out((DATA / "logs" / log).read_bytes()).decode().split("\n")[:-1]


@pytest.fixture(scope="module")
def plain_logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, StepSeries]:
    return {log: said(lines_of(log), log, tmp_path_factory.mktemp("logs")) for log in READERS}


@pytest.mark.parametrize("collector", COLLECTORS)
def test_a_collectors_prefix_changes_nothing(plain_logs: dict[str, StepSeries], collector: str, tmp_path: Path) -> None:
    """Steps, settings and the end of the log are read as without the prefix, in every other log."""
    for log, plain in [*plain_logs.items()][[*COLLECTORS].index(collector) % 2 :: 2]:
        lines = [f"{COLLECTORS[collector](number)}{line}" for number, line in enumerate(lines_of(log))]
        assert_the_same(said(lines, log, tmp_path), plain)


@pytest.mark.parametrize("prefix", ["gpu01: ", "10.0.0.4: ", "node-a: "])
def test_a_launchers_prefix_before_an_indent(prefix: str, tmp_path: Path) -> None:
    """A host is the prefix of a line without an indent, and part of a line with one, such as those of the settings."""
    log = "megatron_lm_core_0.16.log"
    lines = [text for line in lines_of(log) for text in (line.removeprefix("[default0]:"), "loading")]
    assert_the_same(said([prefix + line for line in lines], log, tmp_path), said(lines, log, tmp_path))


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_objects_around_lines_change_nothing(plain_logs: dict[str, StepSeries], wrapper: str, tmp_path: Path) -> None:
    for log, plain in plain_logs.items():
        assert_the_same(said([*map(WRAPPERS[wrapper], lines_of(log))], log, tmp_path), plain)


def assert_the_same(other: StepSeries, plain: StepSeries) -> None:

    apart = {"stamped", "steps", "completed"}  # times may be the collector's, and words have its prefix
    assert other.model_dump(exclude=apart) == plain.model_dump(exclude=apart)
    without = [step.model_copy(update={"at": None}) for step in plain.steps]
    assert [step.model_copy(update={"at": None}) for step in other.steps] == without
    assert plain.steps
    assert plain.completed
    assert (other.completed or "").endswith(plain.completed)


@pytest.mark.parametrize("lines", [
    [], ["iteration 1", "iteration 2"],
    ["loading", "using world size: 2", "iteration 1", "done", "saving model", "bye"], ["[a] x"] * 3 + ["x"] * 3,
], ids=["empty", "short", "no two alike", "half of the lines"])  # fmt: skip
def test_no_prefix(lines: list[str]) -> None:
    """Lines that begin in ways of their own have none."""
    assert not find_shared_prefix(lines).ends


def test_words_that_differ_end_no_prefix() -> None:
    """Two different words are the beginning of a sentence."""
    lines = [f"{name} {verb} it" for name in ("Ada", "Bob", "Cid") for verb in ("reads", "writes")]
    assert not find_shared_prefix(lines).ends
