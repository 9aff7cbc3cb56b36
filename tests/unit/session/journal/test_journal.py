"""The journal of a session: what is in it after a crash, at whatever moment, and after damage."""

import os
import stat
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.session.journal.journal import Journal, JournalEvent, OwnedError, now, read_journal

EVENTS = (
    now("began", host="n1", pid=17, cluster="slurm", command=("-k", "größe\r\n"), tests=("test_a.py::test_a[x]",)),
    now("submitting", name="tiny", plan="0123", job="llmbench-tiny", script="/a b/submission.sh"),
    now("submitted", name="tiny", job_id="4711"), now("finished", name="tiny", record="89ab"),
    now("judged", name="test_a.py::test_a[x]", verdict="PASS"), now("ended"),
)  # fmt: skip
WHOLE = b"".join(event.line for event in EVENTS)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("session") / "journal"


def noted(path: Path, *events: JournalEvent) -> tuple[JournalEvent, ...]:
    """What was in a journal when it was opened to write these events."""
    journal = Journal(path)
    try:
        for event in events:
            journal.note(event)
        return journal.earlier
    finally:
        journal.close()


def test_what_is_noted_is_read_by_the_next_process(tmp_path: Path) -> None:
    path = tmp_path / "session" / "journal"
    assert noted(path, *EVENTS[:2]) == ()
    assert noted(path, *EVENTS[2:]) == EVENTS[:2]
    assert read_journal(path) == (EVENTS, len(WHOLE))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_torn_line_is_what_never_happened(path: Path) -> None:
    """Cut off after any byte, the lines before count, and what is noted next follows them."""
    ends = [len(b"".join(event.line for event in EVENTS[:count])) for count in range(len(EVENTS) + 1)]
    for length in range(len(WHOLE) + 1):
        path.write_bytes(WHOLE[:length])
        whole = sum(end <= length for end in ends[1:])
        assert noted(path, EVENTS[-1]) == EVENTS[:whole]
        assert read_journal(path)[0] == (*EVENTS[:whole], EVENTS[-1])


@given(at=st.integers(0, len(WHOLE) - 1), bits=st.integers(1, 255))
def test_a_damaged_line_is_an_error(path: Path, at: int, bits: int) -> None:
    """Any other byte in a line that has its end is noticed; without the end of the last line, that line is torn."""
    path.write_bytes(WHOLE[:at] + bytes([WHOLE[at] ^ bits]) + WHOLE[at + 1 :])
    if at == len(WHOLE) - 1:
        assert read_journal(path)[0] == EVENTS[:-1]
        return
    with pytest.raises(ConfigError, match=r"journal: line \d of \d is damaged"):
        read_journal(path)


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with suppress(ConfigError):
        assert read_journal(path) == ((), 0)


def test_a_line_of_another_version_is_refused(path: Path) -> None:
    """Whole, but with a word that is not known: nothing is concluded from it."""
    text = b'{"event":"paused","at":1.0}'
    path.write_bytes(JournalEvent.frame(text) + EVENTS[-1].line)
    with pytest.raises(ConfigError, match="line 1 of 2 is damaged"):
        read_journal(path)


def test_one_process_has_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    with pytest.raises(OwnedError, match="is open in another process"):
        Journal(tmp_path / "journal")
    journal.close()
    assert noted(tmp_path / "journal") == ()


def test_a_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next event can be written once there is room again."""
    journal = Journal(tmp_path / "journal")
    journal.note(EVENTS[0])
    write = os.pwrite
    with monkeypatch.context() as patch:
        patch.setattr("os.pwrite", lambda file, data, at: write(file, data[:5], at))
        with pytest.raises(OSError, match="5 of"):
            journal.note(EVENTS[1])
    journal.note(EVENTS[2])
    assert read_journal(journal.path)[0] == (EVENTS[0], EVENTS[2])
