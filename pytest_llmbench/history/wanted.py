"""The value of `--llmbench-compare-to`: the baseline that a user asks for."""

import re
from dataclasses import dataclass
from typing import Literal, Self

from pytest_llmbench.core.errors import ConfigError

LEGAL = "last, last:N, best, tag:NAME, or commit:SHA"
_SHA = re.compile(r"[0-9a-f]{7,64}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """The earlier runs to compare with: the newest `count` sessions, the best one, all of a tag or of a commit.

    `name` is the tag, or the beginning of the commit.
    """

    kind: Literal["last", "best", "tag", "commit"]
    name: str = ""
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a baseline. Raises ConfigError: the text has another form."""
        kind, colon, name = text.strip().partition(":")
        if kind == "last" and (not colon or (name.isascii() and name.isdecimal() and 0 < int(name) <= 1000)):
            return cls(kind="last", count=int(name or 1))
        if kind == "best" and not colon:
            return cls(kind="best")
        if kind == "tag" and name:
            return cls(kind="tag", name=name)
        if kind == "commit" and _SHA.fullmatch(name.lower()):
            return cls(kind="commit", name=name.lower())
        raise ConfigError(f"{text!r} must be {LEGAL}; N from 1 to 1000, SHA with at least 7 digits")

    def __str__(self) -> str:
        if self.kind == "last":
            return "the last session" if self.count == 1 else f"the last {self.count} sessions"
        return {"best": "the best session", "tag": f"tag {self.name}", "commit": f"commit {self.name}"}[self.kind]
