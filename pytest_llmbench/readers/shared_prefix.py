"""Finds the prefix that a collector of logs put before every line of a file, from the file itself.

kubectl, docker compose, journald, CloudWatch, CI systems and Python's logging each write their own, and their users
configure others. In all of them, almost every line of the file begins with one.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_FEWEST_LINES, _SHARE = 4, 0.9
_LONGEST, _MOST_ENDS = 300, 32
_TOKEN = re.compile(r"[ \t]+|\w+|.", re.ASCII)
_CLOSING = frozenset("]|:>)-#;,=")
# A word with a digit may differ from line to line: a number, a time such as `26T10`, a host, or a pod's `7d9f8c`.
_BLANKS, _NUMBERED, _WORD = r"[ \t]+", r"[A-Za-z_]*\d\w*", r"\w+"
_FITS = {kind: re.compile(kind, re.ASCII).fullmatch for kind in (_BLANKS, _NUMBERED, _WORD)}


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """The prefix of the lines of one file."""

    # Patterns of the prefix up to each place where it may end, the shortest first. If many lines begin with the same
    # words, as the steps of a training do, the prefix may end before or after these words.
    ends: tuple[re.Pattern[str], ...] = ()

    def rests(self, text: str) -> Iterator[str]:
        """Yield what may be the text of a line behind its prefix, from the longest to the shortest text."""
        for end in self.ends:
            if match := end.match(text):
                yield text[match.end() :]


def find_shared_prefix(lines: Sequence[str]) -> SharedPrefix:
    """Find the prefix that at least nine of ten lines begin with. Without such a prefix, the result has no `ends`.

    It consists of words that the lines share, numbers, words that differ (`INFO`, `WARNING`) and punctuation, and ends
    with a closing sign such as `]` or `|`, or with blanks after one, after a number or after a shared word. The lines
    are without line ends and escape sequences, and blank ones are left out.
    """
    rows = [_TOKEN.finditer(line[:_LONGEST]) for line in lines if line.strip()]
    fewest = max(_FEWEST_LINES, _SHARE * len(rows))
    parts: list[str] = []
    ends: list[str] = []
    ends_here = False
    while len(rows) >= fewest:
        tokens = [(match[0], row) for row in rows if (match := next(row, None))]
        part = _shared_part([token for token, _ in tokens], fewest)
        if not part:
            break
        fits = re.compile(part, re.ASCII).fullmatch
        tokens = [(token, row) for token, row in tokens if fits(token)]
        rows = [row for _, row in tokens]
        before = "".join(parts)
        closes = part.removeprefix("\\") in _CLOSING
        if ends_here and (closes or part in (_NUMBERED, _BLANKS)):
            ends.pop()  # it goes on, as a time does: 10:00
        fewest_blanks = min(len(token) for token, _ in tokens)  # further blanks may be the text's own
        ends_here = closes or (part == _BLANKS and parts[-1:] != [_WORD])
        if ends_here:
            ends.append(before + (f"[ \t]{{{fewest_blanks}}}" if part == _BLANKS else part))
        parts.append(part)
    return SharedPrefix(tuple(re.compile(end, re.ASCII) for end in ends[:_MOST_ENDS]))


def _shared_part(tokens: Sequence[str], fewest: float) -> str:
    """Return a pattern for the tokens at one place; empty if fewer than `fewest` are alike."""
    different = Counter(tokens)  # few, of many lines
    for kinds in ((_BLANKS, _NUMBERED), (_BLANKS, _WORD)):
        counted: Counter[str] = Counter()
        for token, count in different.items():
            counted[next((kind for kind in kinds if _FITS[kind](token)), re.escape(token))] += count
        if counted and max(counted.values()) >= fewest:
            return counted.most_common(1)[0][0]
    return ""
