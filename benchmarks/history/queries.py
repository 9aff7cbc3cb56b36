"""How long questions to a large history take, and how long it takes to make one.

    python -m benchmarks.history.queries --records 1000000 --repeats 5 [--url URL]

The records are those of runs: 20 recipes on 64 nodes, in sessions of 100 runs, each run with two numbers, a verdict
and a node. They are written in bulk, and not imported one by one. Each question is asked by a connection of its own.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from pytest_llmbench.history.database import History, open_history
from pytest_llmbench.history.ledger import avoided, entries_of, list_devices
from pytest_llmbench.history.queries import list_sessions, read_series, runs_before, show_session

_RECIPES, _NODES, _PER_SESSION, _AT_ONCE = 20, 64, 100, 20_000
_FIRST, _APART_S = 1_600_000_000.0, 60.0


def fill(history: History, records: int) -> None:
    """Write so many runs."""
    with history.writing() as connection:
        series = [
            {
                "id": 1 + i, "recipe": f"r{i:02}", "engine": "torch", "scale": "full", "system": "s", "nodes": 1,
                "gpus": 8, "ranks": 8, "hardware": "NVIDIA H200", "setup": "0" * 64,
            }
            for i in range(_RECIPES)
        ]  # fmt: skip
        connection.insert("llmbench_series", series)
        nodes = [{"id": 1 + i, "kind": "node", "name": f"n{i:03}", "node": f"n{i:03}"} for i in range(_NODES)]
        connection.insert("llmbench_devices", nodes)
        for start in range(0, records, _AT_ONCE):
            numbers = range(start, min(start + _AT_ONCE, records))
            for table, rows in _rows(numbers):
                connection.insert(table, rows)
    with history.writing() as connection:
        connection.rows("ANALYZE")


def _rows(numbers: range) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    sessions = range(-(-numbers.start // _PER_SESSION), -(-numbers.stop // _PER_SESSION))
    yield "llmbench_sessions", [
        {
            "id": f"s{i:08}", "began": _FIRST + i * _PER_SESSION * _APART_S, "system": "s", "cluster": "slurm",
            "ended": True, "imported": 0.0,
        }
        for i in sessions
    ]  # fmt: skip
    yield "llmbench_runs", [
        {
            "id": 1 + i, "session": f"s{i // _PER_SESSION:08}", "about": "run", "name": f"k{i % _PER_SESSION}",
            "series": 1 + i % _RECIPES, "time": _FIRST + i * _APART_S, "content": f"{i:064}", "measurement": f"{i:064}",
            "counts": True, "replayed": False, "path": "/reports/run/record.json",
        }
        for i in numbers
    ]  # fmt: skip
    yield "llmbench_metrics", [
        {
            "run": 1 + i, "name": name, "series": 1 + i % _RECIPES, "time": _FIRST + i * _APART_S, "value": value,
            "unit": unit, "low": value * 0.99, "high": value * 1.01, "better": better,
        }
        for i in numbers
        for name, value, unit, better in (
            ("throughput", 1000.0 + i % 97, "words/s", "higher"), ("step_time", 1.0 + i % 97 / 1000, "s", "lower")
        )
    ]  # fmt: skip
    yield (
        "llmbench_verdicts",
        [{"run": 1 + i, "number": 0, "test": "t", "verdict": "PASS", "statistic": "throughput"} for i in numbers],
    )
    yield "llmbench_sightings", [
        {
            "run": 1 + i, "number": 0, "device": 1 + i % _NODES, "time": _FIRST + i * _APART_S, "kind": "use",
            "what": "ran", "said": "a run", "blames": i % 5000 == 0,
        }
        for i in numbers
    ]  # fmt: skip


def questions(records: int) -> dict[str, Callable[[History], object]]:
    """The questions, by name."""
    now = _FIRST + records * _APART_S
    last = f"s{(records - 1) // _PER_SESSION:08}"
    return {
        "sessions, the newest 50": lambda history: list_sessions(history, 50),
        "one session": lambda history: show_session(history, last),
        "series of a recipe, whole": lambda history: read_series(history, "r07", "throughput"),
        "series of a recipe, the newest 1000": lambda history: read_series(history, "r07", "throughput", last=1000),
        "baseline of a recipe": lambda history: runs_before(history, "r07", now, leave_out=[last]),
        "ledger of a node": lambda history: list_devices(history, node="n007", now=now),
        "entries of a node, the newest 100": lambda history: entries_of(history, "n007", limit=100),
        "nodes to avoid": lambda history: avoided(history, now=now),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Make a history, ask, and print the medians; 1 if one is above a second."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--url", help="an empty database; by default a file of SQLite in a temporary folder")
    asked = parser.parse_args(arguments)
    slowest = 0.0
    with tempfile.TemporaryDirectory() as folder, open_history(asked.url or Path(folder, "history.db")) as history:
        began = time.perf_counter()
        fill(history, asked.records)
        name = history.backend
        print(f"{name}: {asked.records:,} records made in {time.perf_counter() - began:.0f} s")
        for words, ask in questions(asked.records).items():
            took = []
            for _ in range(asked.repeats):
                began = time.perf_counter()
                ask(history)
                took.append(time.perf_counter() - began)
            slowest = max(slowest, median(took))
            print(f"{words:40} {median(took):7.3f} s  ({min(took):.3f} to {max(took):.3f})")
    return int(slowest >= 1.0)


if __name__ == "__main__":
    raise SystemExit(main())
