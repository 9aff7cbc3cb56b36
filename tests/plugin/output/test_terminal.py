"""What a person at a terminal sees: a live line while a run is under way, and a clean screen after it."""

from __future__ import annotations

import os
import pty
import re
import subprocess

from tests.conftest import UserFolder


def screen(written: str) -> list[str]:
    """The lines a terminal shows in the end: a carriage return goes back and writes over, as far as it reaches."""
    shown = []
    for line in re.sub(r"\x1b\[[0-9;]*m", "", written).split("\n"):
        cells: list[str] = []
        for part in line.split("\r"):
            cells[: len(part)] = part
        shown.append("".join(cells).rstrip())
    return shown


def on_a_terminal(user: UserFolder, *arguments: str) -> tuple[int, str]:
    """Run pytest on a terminal of its own and return its exit code and all that it wrote."""
    ours, its = pty.openpty()
    process = subprocess.Popen(
        user.command(*arguments), cwd=user.path, stdin=its, stdout=its, stderr=its, close_fds=True,
        env={**user.environment, "COLUMNS": "100", "TERM": "xterm"},
    )  # fmt: skip
    os.close(its)
    written = bytearray()
    try:
        while data := os.read(ours, 65536):
            written += data
    except OSError:  # Linux: the other end is closed
        pass
    os.close(ours)
    return process.wait(300), written.decode().replace("\r\n", "\n")


def test_the_live_line_comes_and_goes(user: UserFolder) -> None:
    """A run in a terminal: step, words per second and time to go in one line, which is gone when the dots come."""
    user.recipe(steps=400)
    user.test()
    code, written = on_a_terminal(user, "--cluster", "local", "-n0", "-k", "tiny")
    assert code == 0, written
    assert re.search(r"\rtiny: starting \(pid \d+\)", written)
    assert re.search(r"\rtiny: step \d+/400, [\d,]+ words/s, \d+ s to go", written)
    shown = screen(written)
    assert not [line for line in shown if "s to go" in line or line.startswith("tiny: ")]
    assert shown[0].startswith("====")
    (result,) = [line for line in shown if line.endswith("[100%]")]
    assert result.split() in (["test_user.py", ".", "[100%]"], [".", "[100%]"])
    assert [line for line in shown if re.fullmatch(r"tiny +1 +loss_drop .* PASS( .*)?", line)]


def test_xdist_leaves_the_line_to_its_own(user: UserFolder) -> None:
    """Workers' dots come at any time, so there is no live line to fall into."""
    user.recipe(steps=400)
    user.test()
    code, written = on_a_terminal(user, "--cluster", "local", "-n1", "-k", "tiny")
    assert code == 0, written
    # A plain line every half minute is all right; a live line would be drawn several times in a second.
    assert not re.search(r"\r\x1b|\x1b\[2K", written)
    assert written.count("s to go") < 5
    assert [line for line in screen(written) if re.fullmatch(r"tiny +1 +loss_drop .* PASS( .*)?", line)]
