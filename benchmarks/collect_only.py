"""What the plugin adds to collecting: the shipped suites with it, and an empty test without it, side by side.

    .venv/bin/python benchmarks/collect_only.py [rounds]

The two are timed in turn, as whole processes, so that whatever else the machine does hits both.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]


def seconds(command: list[str], folder: Path) -> float:
    """Wall clock of one command."""
    started = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def main() -> None:
    """Print minimum, median and maximum of both, and the ratio of the medians."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    pytest = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    with tempfile.TemporaryDirectory() as name:
        empty = Path(name)
        (empty / "test_empty.py").write_text("def test_empty(): pass\n")
        commands = {
            "suites, with the plugin": ([*pytest, "suites"], ROOT),
            "one empty test, without": ([*pytest, "-p", "no:llmbench"], empty),
            "one empty test, with": (pytest, empty),
        }
        taken: dict[str, list[float]] = {what: [] for what in commands}
        for _ in range(rounds):
            for what, (command, folder) in commands.items():
                taken[what].append(seconds(command, folder))
    for what, times in taken.items():
        print(f"{what:28} min {min(times):.3f} s  median {statistics.median(times):.3f} s  max {max(times):.3f} s")
    with_plugin, without, idle = (statistics.median(times) for times in taken.values())
    print(
        f"ratio with / without: {with_plugin / without:.2f}; for a session that asks for no run: {idle / without:.2f}"
    )


if __name__ == "__main__":
    main()
