"""Files that people write or that a session left, and the loaders of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from pytest_llmbench.cluster.quarantine import read_quarantine
from pytest_llmbench.cluster.recipes import check_recipes
from pytest_llmbench.cluster.runs import Plan
from pytest_llmbench.cluster.system import System
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.paths import shipped
from pytest_llmbench.core.quantity import Quantity
from pytest_llmbench.core.recipe.recipes import load_recipes
from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.records import JobTraces, RunRecord
from pytest_llmbench.core.schema import validate
from pytest_llmbench.core.wire import layout
from pytest_llmbench.core.wire.driver import CommandTask, read_report
from pytest_llmbench.core.wire.notes import longest_pause
from pytest_llmbench.core.wire.task import Task
from pytest_llmbench.core.yaml_files import read_yaml
from pytest_llmbench.judging.golden import GoldenLosses
from pytest_llmbench.plugin.verdict.requirements import read_requirements
from pytest_llmbench.session.journal.journal import JournalEvent, read_journal
from pytest_llmbench.session.law import Law
from pytest_llmbench.session.replay import ReplayFacts, runs_of_session
from tests.support.samples import DATA

Reader = tuple[Sequence[bytes], Callable[[bytes], Any]]

_SESSIONS = DATA / "session", DATA / "h200"
_STEPS = [{"step": step, "loss": 9.0 - step, "tolerance": 0.1, "ranks": 2} for step in (1, 2, 3)]
_GOLDEN = {"schema_version": 1, "recipe": "tiny", "runs": ["a", "b", "c"], "date": "2026-11-23", "exact": False,
           "device": "cpu", "versions": {"torch": "2.13"}, "steps": _STEPS}  # fmt: skip
_REPORT = {"hosts": ["n1", "n2"], "device": "cpu", "started": 1.0, "ended": 9.5, "exit_code": 0,
           "provenance": {"a": "b"}, "secrets": [{"length": 9, "salt": "00" * 16, "digest": "11" * 16}]}  # fmt: skip
_COMMAND = {"nodes": 1, "ranks_per_node": 2, "device": "cpu", "token": "t-1", "script": "run.sh", "python": "python3",
            "env": {"A": "b"}, "secrets": {"KEY": "/k"}, "setup": ["true"], "mounts": ["/a:/b"]}  # fmt: skip
_EVENTS = (
    JournalEvent(
        event="began", at=1.5, host="n1", pid=7, cluster="slurm", command=("pytest", "-x"), tests=("a.py::b",)
    ),
    JournalEvent(
        event="submitting", at=2.5, name="tiny", plan="0f", job="llmbench-x", script="/s/run.sh", hosts=("n2",)
    ),
    JournalEvent(event="submitted", at=2.75, name="tiny", job_id="17"),
    JournalEvent(event="judged", at=9.0, name="a.py::b", record="0e", verdict="PASS"),
)
_FACTS = {"nodes": 2, "gpus_per_node": 8, "hosts": ["n1", "n2"], "gpu": "H100", "ended": "steps", "wall_s": 100.5}


def readers(folder: Path) -> Mapping[str, Reader]:
    """Samples and reader, by name."""
    run, other = (_found(layout.RECORD, kind) for kind in ("runs", "checks"))
    return {
        "json recipe": (_recipes(), _recipe_file(folder)),
        "json system": (_systems(), _file(folder / "system.yaml", lambda path: validate(System, read_yaml(path), "x"))),
        "json replay facts": (
            _both(_FACTS),
            _file(folder / "replay.yaml", lambda path: validate(ReplayFacts, read_yaml(path), "x")),
        ),
        "requirements": ([b'"4.10": test_a\nb: [test_b, "test_c*"]\n'], _file(folder / "r.yaml", read_requirements)),
        "json run record": (run, _file(folder / "record.json", RunRecord.read)),
        "json health record": (other, _file(folder / "health.json", HealthRecord.read)),
        "json job": (_found(layout.JOB, "runs"), _model(folder / "job.json", JobTraces)),
        "json plan": (_found(layout.PLAN, ""), _model(folder / "plan.json", Plan)),
        "json session": (_found(layout.PLAN, ""), _session(folder / "session")),
        "json task": (_found(layout.TASK, "runs"), _file(folder / "task.json", Task.read)),
        "json command": (_both(_COMMAND), _file(folder / "command.json", CommandTask.read)),
        "json driver": (_both(_REPORT), _file(folder / layout.DRIVER, lambda path: read_report(path.parent))),
        "json golden losses": (_both(_GOLDEN), _file(folder / "golden.json", GoldenLosses.read)),
        "journal": ([b"".join(event.line for event in _EVENTS)], _file(folder / "journal", read_journal)),
        "json journal line": (
            [event.line.partition(b" ")[2] for event in _EVENTS],
            _file(folder / "framed", read_journal, JournalEvent.frame),
        ),
        "quarantine": ([b"# head\nn1  # 2026-11-23 s: why\nn2\n"], _file(folder / "bad", read_quarantine)),
        "pauses": ([b"12.5 1764000000.1\n3.0 1764000001.0\n"], _pauses(folder / "paused")),
        "quantity": ([b"12.5 words/s", b"3 GiB", b"250 ms", b"-4e3 tokens/s"], _quantity),
    }


def _found(name: str, kind: str) -> list[bytes]:
    return [path.read_bytes() for root in _SESSIONS for path in sorted(root.rglob(name))
            if kind in {"", path.parent.parent.name}]  # fmt: skip


def _both(document: Any) -> list[bytes]:
    """As JSON, for other values, and as YAML, for its syntax."""
    return [json.dumps(document, default=str).encode(), yaml.safe_dump(document).encode()]


def _recipes() -> list[bytes]:
    """Each shipped family with one of its recipes: fewer take less time."""
    found = []
    for path in sorted(shipped("recipes").glob("*.yaml")):
        family = read_yaml(path)
        name, own = next(iter(family["recipes"].items()))
        found += _both({**family, "recipes": {name: own}})
    return found


def _systems() -> list[bytes]:
    return [text for path in sorted(shipped("systems").glob("*.yaml")) for text in _both(read_yaml(path))]


def _file(
    path: Path, read: Callable[[Path], Any], framed: Callable[[bytes], bytes] = lambda data: data
) -> Callable[[bytes], Any]:
    """What reads a file, and says with an error of ours that it cannot."""

    def reader(data: bytes) -> Any:
        path.write_bytes(framed(data))
        with suppress(ConfigError):
            return read(path)

    return reader


def _model(path: Path, model: Any) -> Callable[[bytes], Any]:
    def reader(data: bytes) -> Any:
        path.write_bytes(data)
        with suppress(ValidationError):
            return model.model_validate_json(path.read_bytes())

    return reader


def _recipe_file(folder: Path) -> Callable[[bytes], Any]:
    recipes = folder / "recipes"
    recipes.mkdir(exist_ok=True)

    def read(path: Path) -> None:
        for recipe in load_recipes([path.parent]).values():
            check_recipes([recipe])

    return _file(recipes / "family.yaml", read)


def _session(folder: Path) -> Callable[[bytes], Any]:
    (folder / layout.FOLDERS["run"]).mkdir(parents=True, exist_ok=True)
    return _file(folder / layout.PLAN, lambda path: list(runs_of_session(path.parent, Law())))


def _pauses(folder: Path) -> Callable[[bytes], Any]:
    (folder / layout.PAUSES).mkdir(parents=True, exist_ok=True)
    return _file(folder / layout.PAUSES / "driver", lambda path: longest_pause(path.parents[1]))


def _quantity(data: bytes) -> Any:
    with suppress(ConfigError):
        return Quantity(data.decode("utf-8", errors="replace"))
