"""Signs records with the command line and user of their session, and the command that reproduces them."""

import contextlib
import getpass
import os
import shlex
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pytest_llmbench.cluster.runs import Declared
from pytest_llmbench.core.record.records import MadeBy, Record, RunRecord, iso

# Options that are about one session; their value may be the next word.
_NAMED, _RESUMED = ("--llmbench-session-name",), ("--resume", "--llmbench-resume")


@dataclass(frozen=True, kw_only=True)
class PytestCommand:
    """The command line of a session, and what it selected."""

    version: str  # of this package
    words: Sequence[str]
    selection: Sequence[str]  # those of the words that are files, folders or node ids
    directory: Path  # the folder in which pytest was started
    root: Path  # pytest's root folder, to which node ids are relative
    tests: Sequence[Declared]  # tests of ours that it selected

    def sign(self, record: Record, redact: Callable[[Iterable[str]], Sequence[str]]) -> MadeBy:
        """Describe the making of a record; `redact` removes secrets from words of a command line."""
        again, user = ["pytest", *redact(self._options()), *self._tests_of(record)], None
        with contextlib.suppress(KeyError, OSError):  # in a container, the user may lack a name
            user = getpass.getuser()
        return MadeBy(
            llmbench_version=self.version, command=tuple(redact(self.words)), directory=str(self.directory),
            user=user, host=socket.gethostname(), submitted=iso(record.timings.submitted),
            started=iso(record.timings.started), ended=iso(record.timings.ended),
            reproduce=f"cd {shlex.quote(str(self.directory))} && {shlex.join(again)}",
        )  # fmt: skip

    def _options(self) -> Iterator[str]:
        """Yield the words, and leave out the selection and what is about one session alone."""
        before = ""
        for word in self.words:
            value = before.startswith("-") and "=" not in before
            option, last, before = word.partition("=")[0], before, word
            if option in (*_NAMED, *_RESUMED) or last in _NAMED:
                continue
            if last in _RESUMED and not word.startswith("-") and word not in self.selection:
                continue
            # A word that is also the value of an option stays there.
            if word in self.selection and not (value and self.words.count(word) > self.selection.count(word)):
                continue
            yield word

    def _tests_of(self, record: Record) -> Iterator[str]:
        """Yield the node ids of the tests that waited for a record, as seen from where pytest was started."""
        subject = record.series if isinstance(record, RunRecord) else record.name
        for test in self._by_subject.get((record.about, subject), ()):
            file, _, name = test.partition("::")
            yield f"{os.path.relpath(self.root / file, self.directory)}::{name}"

    @cached_property
    def _by_subject(self) -> Mapping[tuple[str, str], Sequence[str]]:
        tests: dict[tuple[str, str], list[str]] = {}
        for test in self.tests:
            about, name = ("check", test.check) if test.check is not None else ("run", test.run)
            tests.setdefault((about, name or ""), []).append(test.test)
        return tests
