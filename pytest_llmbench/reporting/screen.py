"""A block of lines that is redrawn below all other output of a terminal."""

import threading
from collections.abc import Sequence
from typing import Any, TextIO

_CLEAR_BELOW = "\x1b[J"
# Characters of an unfinished line that are kept, to write it again.
_MOST = 4096


class BlockScreen:
    """Replaces the file of pytest's terminal writer, and clears the block before each write.

    The block begins on a line of its own. An unfinished line above it, such as a row of dots, is written again when the
    block goes, so that it goes on where it was. Writers may be in several threads.
    """

    def __init__(self, file: TextIO) -> None:
        self.file = file
        self._lock = threading.RLock()
        self._unfinished = ""
        self._drawn: list[int] = []
        self._width = 0

    @property
    def is_drawn(self) -> bool:
        """True while the block is on the screen."""
        return bool(self._drawn)

    def write(self, text: str) -> int:
        """Write a text where the block was."""
        with self._lock:
            self.file.write(self._erase())
            written = self.file.write(text)
            self._unfinished = (self._unfinished + text).rpartition("\n")[2][-_MOST:]
            return written

    def draw(self, lines: Sequence[str], width: int) -> None:
        """Redraw the block, in one write.

        Args:
            lines: at most as wide as the terminal; they may have colours.
            width: columns of the terminal.
        """
        with self._lock:
            gone = self._erase(width)
            begin = "\n" if self._unfinished and lines else ""
            self.file.write(gone + begin + "\n".join(lines))
            self.file.flush()
            self._drawn, self._width = [_visible(line) for line in lines], width

    def clear(self, width: int | None = None) -> None:
        """Clear the block."""
        with self._lock:
            if self._drawn:
                self.file.write(self._erase(width))
                self.file.flush()

    def __getattr__(self, name: str) -> Any:
        """Pass every other attribute on to the file."""
        return getattr(self.file, name)

    def _erase(self, width: int | None = None) -> str:
        """The text that takes the block away, also after a narrower terminal has wrapped its lines."""
        if not self._drawn:
            return ""
        width = max(1, width or self._width)
        rows = sum(_rows(length, width) for length in self._drawn) - 1
        self._drawn = []
        if self._unfinished:
            rows += _rows(_visible(self._unfinished), width)
        up = f"\x1b[{rows}A" if rows else ""
        return f"\r{up}{_CLEAR_BELOW}{self._unfinished}"


def _rows(length: int, width: int) -> int:
    return max(1, -(-length // width))


def _visible(text: str) -> int:
    """Columns that a line takes; pytest counts wide characters in the same way."""
    from rich.text import Text  # noqa: PLC0415  # heavy, and needed on terminals only

    return Text.from_ansi(text).cell_len
