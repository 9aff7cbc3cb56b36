"""The cost of an XML that is written as verdicts come, in CPU time and memory, compared with one written at the end.

    .venv/bin/python -m benchmarks.junit_xml [--rounds 3] [--seconds 60] TESTS...

Each session has one run on this machine, and so many tests of it, which sleep to make it last about as long as asked.
Both kinds take turns. CPU seconds are those of pytest's process and of what it waited for.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from benchmarks.overhead import Bench, Cost

TESTS = """
import json
import os
import time
import pytest
from pytest_llmbench.plugin.output.junit_xml.refreshing import Refreshing

taken, attempt = [], Refreshing._attempt

def timed(self):
    began = time.thread_time()
    attempt(self)
    taken.append(time.thread_time() - began)
    with open("taken.json", "w") as file:
        json.dump(taken, file)

Refreshing._attempt = timed
if "AT_THE_END" in os.environ:
    Refreshing.note_change = lambda self: None

@pytest.mark.recipe("case00000")
@pytest.mark.parametrize("number", range({tests}))
def test_many(run, number):
    time.sleep({pause_s})
"""


def session(bench: Bench, *, at_the_end: bool) -> tuple[Cost, list[float]]:
    """The cost of a session, and the CPU seconds of each time that it wrote the XML before its end."""
    environment = {"AT_THE_END": "1"} if at_the_end else {}
    cost = bench.pytest("--cluster", "local", "test_many.py", "--junitxml=report.xml", env=environment)
    return cost, json.loads((bench.folder / "taken.json").read_text())


def main() -> None:
    """Print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", type=int, nargs="+")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="llmbench-xml-") as name:
        bench = Bench(Path(name), 1)
        for tests in options.tests:
            (bench.folder / "test_many.py").write_text(TESTS.format(tests=tests, pause_s=options.seconds / tests))
            found: dict[bool, list[tuple[Cost, list[float]]]] = {True: [], False: []}
            for _ in range(options.rounds):
                for at_the_end, sessions in found.items():
                    sessions.append(session(bench, at_the_end=at_the_end))
            for at_the_end, sessions in found.items():
                cpu, memory, wall = (
                    statistics.median(getattr(cost, what) for cost, _ in sessions)
                    for what in ("cpu_s", "memory_mb", "wall_s")
                )
                times = len(sessions[-1][1])
                each_ms = 1e3 * statistics.median(taken for _, written in sessions for taken in written)
                kind = "at the end" if at_the_end else "as verdicts come"
                print(
                    f"{tests:6} tests, {kind:17} wall {wall:6.1f} s  CPU {cpu:6.2f} s  {memory:4.0f} MB  "
                    f"written {times} times before the end, {each_ms:.0f} ms each",
                    flush=True,
                )


if __name__ == "__main__":
    main()
