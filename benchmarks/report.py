"""How large the HTML report of a session of very many runs is, how long it takes to write, and to open in Chromium.

    .venv/bin/python -m benchmarks.report [runs] [steps]

The records are those of a real run on an H200 with other step times. Chromium opens the file without a screen, each
time with an empty profile. The program prints, of five times, when the first picture was painted, when all was loaded,
and the CPU time of the page's main thread until then.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.support.browser import browsing, missing
from tests.support.recorded import write_large, write_page

TIMES = 5
_TIMING = """
const [all] = performance.getEntriesByType("navigation");
const [paint] = performance.getEntriesByName("first-contentful-paint");
return [paint.startTime, all.loadEventEnd];
"""


def main(runs: int, steps: int) -> None:
    """Measure, and print."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "session"
        write_large(folder, runs, steps)
        began, cpu = time.perf_counter(), time.process_time()
        path = write_page(folder)
        print(f"{runs} runs of {steps} steps: {path.stat().st_size / 1e6:.2f} MB", end=", ")
        print(f"written in {time.perf_counter() - began:.1f} s ({time.process_time() - cpu:.1f} s of CPU time)")
        if why := missing():
            print(why)
            return
        opened = [_opened(path, Path(made) / f"profile{number}") for number in range(TIMES)]
    for name, values in zip(("first paint", "loaded", "CPU time"), zip(*opened, strict=True), strict=True):
        print(f"{name}: median {statistics.median(values):.2f} s ({min(values):.2f} to {max(values):.2f})")


def _opened(path: Path, profile: Path) -> tuple[float, float, float]:
    """Seconds until the first paint and until all is loaded, and CPU seconds of the page."""
    with browsing(profile) as browser:
        browser.resize(1280, 900)
        browser.command("Performance.enable")
        browser.open(path)
        paint, loaded = browser.run(_TIMING)
        told = {each["name"]: each["value"] for each in browser.command("Performance.getMetrics")["metrics"]}
        return paint / 1e3, loaded / 1e3, told["TaskDuration"]


if __name__ == "__main__":
    numbers = [int(each) for each in sys.argv[1:]]
    main(*(numbers + [2_000, 100][len(numbers) :]))
