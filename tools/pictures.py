"""Make the pictures of the documents again: the report, the nodes × checks map, and the terminal of README's test.

.venv/bin/python tools/pictures.py TRAINING VALIDATION: folders of sessions, the second of a session that checked
several nodes. Needs Chromium and its driver.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from tests.support.browser import browsing  # noqa: E402

WIDTH, COLUMNS = 1280, 110
WORDS = ("test_my_cluster.py", "--scale", "smoke", "--cluster", "local")
# Plugins that only developers have.
_OTHERS = ("cacheprovider", "benchmark", "xdist", "timeout", "anyio", "hypothesispytest")

_SEEN_ARE_DRAWN = """return [...document.querySelectorAll('.plot')].every(
    each => each.dataset.drawn || !each.checkVisibility() || each.getBoundingClientRect().top > innerHeight)"""


def write_report(session: Path, work: Path) -> Path:
    """Write the report of a copy of a session by the code of today."""
    copy = work / session.resolve().name
    shutil.copytree(session.resolve(), copy, dirs_exist_ok=True)
    subprocess.run([Path(sys.executable).with_name("llmbench"), "report", "--as-recorded", copy], check=True)
    return copy / "report.html"


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


def main(training: str, validation: str) -> None:
    """Write the three pictures."""
    with tempfile.TemporaryDirectory() as folder:
        work, images = Path(folder), ROOT / "docs" / "images"
        reports = [write_report(Path(session), work) for session in (training, validation)]
        terminal = draw_terminal(work)
        with browsing(work / "profile") as browser:
            for page, name, height in (
                (reports[0], "report", 1500),
                (reports[1], "map", 900),
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
                        "document.getElementById(arguments[0])?.scrollIntoView()", "nodes" if name == "map" else ""
                    )
                    browser.wait_for(_SEEN_ARE_DRAWN)
                browser.screenshot(images / f"{name}.png")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
