"""Logs and scripts of a run, as far as a report may and can show them: without secrets, and not longer than asked."""

import os
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pytest_llmbench.core.text import harmless
from pytest_llmbench.core.wire import layout
from pytest_llmbench.core.wire.driver import read_report
from pytest_llmbench.core.wire.foreign import redacted
from pytest_llmbench.session.ending.causes import log_to_read
from pytest_llmbench.workloads.node.secret_filter import secret_values

_EXPORT = re.compile(r"^(?:export )?(\w+)=(.*)$", re.MULTILINE)
_LONGEST_SCRIPT = 1 << 20


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A part of a text file.

    Attributes:
        place: its path.
        text: the part that is shown; empty where there is none.
        note: the part that is left out, or the reason why nothing is shown; empty if it is whole.
    """

    place: str
    text: str = ""
    note: str = ""


class ShownTexts:
    """Reads files of runs for a report, and takes secrets out of them.

    The secrets are those that this process can see, those that the scripts of the session export, and those whose marks
    the driver of a run left. The settings of the session are not known here, as a report is made from its folder.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        self._known = secret_values(dict(os.environ), ())
        for folder in folders:
            for script in _scripts(folder):
                self._known |= secret_values(dict(_exports(_head(script, _LONGEST_SCRIPT))), ())

    def script(self, folder: Path, most: int) -> Excerpt | None:
        """The script of a run; None for one without any, such as ranks of our own in a step of Slurm."""
        scripts = _scripts(folder)
        if not scripts:
            return None
        text = _head(scripts[0], _LONGEST_SCRIPT)
        return self._excerpt(scripts[0], text[:most], folder, "its end is left out" if len(text) > most else "")

    def log_tail(self, folder: Path, logs: Path, most: int) -> Excerpt:
        """The end of the log to read first."""
        path = log_to_read(logs)
        if not path.is_file():
            return Excerpt(str(path), note="there is no log with anything in it")
        try:
            with path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - most))
                data = file.read(most)
        except OSError as error:
            return Excerpt(str(path), note=f"it cannot be read: {error.strerror}")
        text = data.decode("utf-8", errors="replace")
        if size > most:
            # A secret that is cut in two is not found: the first line, which may be a part, is left out.
            text = text.partition("\n")[2]
        return self._excerpt(path, text, folder, f"the last {most:,} of {size:,} bytes" if size > most else "")

    def _excerpt(self, path: Path, text: str, folder: Path, note: str) -> Excerpt:
        driver = read_report(folder)
        marks = driver.secrets if driver is not None else ()
        return Excerpt(str(path), redacted(harmless(text), self._known, marks), note)


def _scripts(folder: Path) -> list[Path]:
    """Scripts that started a run, the framework's own first."""
    own = folder / layout.SCRIPT
    return [path for path in (own, *sorted((folder / layout.LOGS).glob("*.sh"))) if path.is_file()]


def _head(path: Path, most: int) -> str:
    try:
        with path.open("rb") as file:
            return file.read(most).decode("utf-8", errors="replace")
    except OSError:
        return ""


def _exports(script: str) -> Iterable[tuple[str, str]]:
    """Variables that a script sets, by name."""
    for name, value in _EXPORT.findall(script):
        try:
            words = shlex.split(value)
        except ValueError:
            words = [value]
        yield name, words[0] if words else ""
