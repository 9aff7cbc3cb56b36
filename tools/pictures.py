"""Make the pictures of the documents again: the report, the nodes × checks map, and the terminal of README's test.

.venv/bin/python tools/pictures.py, which needs Chromium and its driver. The report and the map are of recorded steps of
an H200, as the tests of the report have them, with other nodes and verdicts.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from pytest_llmbench.checks.base import CHECKS  # noqa: E402
from tests.support.browser import browsing  # noqa: E402
from tests.support.recorded import check_records, write_fleet, write_page, write_session  # noqa: E402

WIDTH, COLUMNS = 1280, 110
WORDS = ("test_my_cluster.py", "--scale", "smoke", "--cluster", "local")
# Plugins that only developers have.
_OTHERS = ("cacheprovider", "benchmark", "xdist", "timeout", "anyio", "hypothesispytest")


def write_reports(work: Path) -> tuple[Path, Path]:
    """Write the reports of two sessions with bad nodes among them: trainings on 64 nodes, and the checks of 8."""
    checks = sorted(set(CHECKS.usable()) - {"all_reduce", "pairs", "gemm", "gpu_xid", "dcgm"})
    trained, checked = work / "20261118-110140-trained", work / "20261118-104502-checked"
    write_fleet(trained, 64, checks)
    write_session(checked, [], check_records(checked, plain=checks))
    return write_page(trained), write_page(checked)


def draw_terminal(work: Path) -> Path:
    """Run the test of README, and draw what it prints."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    (work / WORDS[0]).write_text(code, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", *(f"-pno:{name}" for name in _OTHERS), "--color=yes", *WORDS]
    env = {"PATH": os.environ["PATH"], "HOME": str(work), "COLUMNS": str(COLUMNS)}
    done = subprocess.run(command, cwd=work, env=env, capture_output=True, text=True, check=False)
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere)
        console.print(Text(f"$ pytest {' '.join(WORDS)}", "bold"))
        console.print(Text.from_ansi(done.stdout))
    console.save_svg(str(work / "terminal.svg"), title="llmbench")
    return work / "terminal.svg"


def main() -> None:
    """Write the three pictures."""
    with tempfile.TemporaryDirectory() as folder:
        work, images = Path(folder), ROOT / "docs" / "images"
        trained, checked = write_reports(work)
        terminal = draw_terminal(work)
        with browsing(work / "profile") as browser:
            for page, name, height in (
                (trained, "report", 1150),
                (checked, "map", 760),
                (terminal, "terminal", 0),
            ):
                browser.resize(WIDTH, height or 900)
                browser.open(page)
                if name == "terminal":
                    box = browser.run(
                        "const box = document.documentElement.viewBox.baseVal; return [box.width, box.height]"
                    )
                    browser.resize(WIDTH, round(WIDTH * box[1] / box[0]))
                else:
                    browser.run(
                        "document.querySelector(arguments[0]).scrollIntoView()", ".map" if name == "map" else "body"
                    )
                browser.screenshot(images / f"{name}.png")


if __name__ == "__main__":
    main()
