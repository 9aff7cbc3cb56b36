"""Names of sessions; and times in which processes of a run stood still, written by each and read together."""

import re
import time
from pathlib import Path

from pytest_llmbench.core.wire import layout
from pytest_llmbench.core.wire.notes import longest_pause, note_pause


def test_the_longest_pause_is_found(tmp_path: Path) -> None:
    assert longest_pause(tmp_path) is None
    note_pause(tmp_path, "rank-00000", 6.04)
    note_pause(tmp_path, "rank-00001", 20.0)
    note_pause(tmp_path, "rank-00001", 3.0)
    with (tmp_path / "pauses" / "rank-00000").open("a") as file:
        file.write("\nx")
    assert longest_pause(tmp_path) == ("rank-00001", 20.0)
    assert longest_pause(tmp_path, since=time.time() - 60) == ("rank-00001", 20.0)
    assert longest_pause(tmp_path, since=time.time() + 60) is None


def test_nobody_ends_because_a_pause_cannot_be_noted(tmp_path: Path) -> None:
    (tmp_path / "pauses").write_text("in the way")
    note_pause(tmp_path, "rank-00000", 6.0)


def test_sessions_sort_by_their_beginning() -> None:
    ids = []
    for _ in range(50):
        ids.append(layout.new_id())
        time.sleep(0.001)
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{6}", each) for each in ids)
    assert len({each[-3:] for each in ids}) > 1
