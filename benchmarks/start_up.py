"""The time that the plugin adds to a session of pytest with one plain test: run with the plugin and without.

    .venv/bin/python -m benchmarks.start_up [--rounds 21] [ARGUMENT OF PYTEST...]

The two take turns, as whole processes, so that whatever else the machine does hits both. The first round, which
may have to compile modules, is not counted.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WITHOUT = "without the plugin"
WITH = "with the plugin"


def taken(command: list[str], folder: Path) -> tuple[float, float]:
    """CPU time and wall-clock time of a command, in ms.

    Raises:
        RuntimeError: it failed.
    """
    began = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return 1e3 * (usage.ru_utime + usage.ru_stime), 1e3 * wall


def main() -> None:
    """Print the medians of both, with the least and the most, and their difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    told, of_pytest = parser.parse_known_args()
    pytest = [sys.executable, "-m", "pytest", "-q", *of_pytest]
    commands = {WITHOUT: [*pytest, "-p", "no:llmbench"], WITH: pytest}
    times: dict[str, list[tuple[float, float]]] = {what: [] for what in commands}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "test_plain.py").write_text("def test_plain(): pass\n")
        for _ in range(told.rounds + 1):
            for what, command in commands.items():
                times[what].append(taken(command, Path(folder)))
    medians = {}
    for what, measured in times.items():
        cpu, wall = (sorted(each) for each in zip(*measured[1:], strict=True))
        medians[what] = (statistics.median(cpu), statistics.median(wall))
        print(
            f"{what:18}  CPU {medians[what][0]:4.0f} ms ({cpu[0]:.0f} to {cpu[-1]:.0f})"
            f"  wall {medians[what][1]:4.0f} ms ({wall[0]:.0f} to {wall[-1]:.0f})"
        )
    cpu_more, wall_more = (more - less for more, less in zip(medians[WITH], medians[WITHOUT], strict=True))
    print(f"{'the plugin adds':18}  CPU {cpu_more:4.0f} ms  wall {wall_more:4.0f} ms")


if __name__ == "__main__":
    main()
