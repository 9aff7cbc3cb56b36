"""A terminal of a given size, as far as the live view uses one: what is on its screen after some text."""

import re

_ESCAPE = re.compile(r"\x1b\[(\d*)([A-Za-z])|\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """Obeys carriage returns, line feeds, cursor up and clearing below, and ignores colours."""

    def __init__(self, width: int = 80) -> None:
        self.width = width
        self._rows: list[list[str]] = [[]]
        self._row = self._column = 0

    def feed(self, text: str) -> None:
        """Take what a program writes."""
        at = 0
        while at < len(text):
            if found := _ESCAPE.match(text, at):
                at = found.end()
                if found[2] == "A":
                    self._row = max(0, self._row - int(found[1] or 1))
                elif found[2] == "J":
                    del self._rows[self._row + 1 :]
                    del self._rows[self._row][self._column :]
                continue
            self._put(text[at])
            at += 1

    def _put(self, character: str) -> None:
        if character == "\r":
            self._column = 0
        elif character == "\n":
            self._down()
        else:
            if self._column == self.width:
                self._down()
            row = self._rows[self._row]
            row.extend(" " * (self._column - len(row)))
            row[self._column : self._column + 1] = [character]
            self._column += 1

    def _down(self) -> None:
        self._row, self._column = self._row + 1, 0
        if self._row == len(self._rows):
            self._rows.append([])

    @property
    def lines(self) -> list[str]:
        """What is on the screen, and above it."""
        return ["".join(row).rstrip() for row in self._rows]
