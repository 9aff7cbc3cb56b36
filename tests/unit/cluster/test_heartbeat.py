"""The owner's sign of life: where it starts, where it ends, and where it never started."""

from pathlib import Path

from pytest_llmbench.cluster.heartbeat import Heartbeat, read_stop, write_stop


def test_it_says_that_it_lives_and_that_it_is_done(tmp_path: Path) -> None:
    heartbeat = Heartbeat(tmp_path).start()
    assert heartbeat.path.read_text().strip().isdecimal()
    assert read_stop(tmp_path) is None
    heartbeat.stop()
    heartbeat.stop()
    assert read_stop(tmp_path) == "the session ended"


def test_a_session_that_is_taken_on_gives_other_signs(tmp_path: Path) -> None:
    first = Heartbeat(tmp_path).start()
    before = first.path.read_text()
    first.stop()
    second = Heartbeat(tmp_path).start()
    assert int(second.path.read_text()) > int(before) + 1000
    second.stop()


def test_a_stop_hides_no_other_error(tmp_path: Path) -> None:
    """Of a session that never started, or on a full disk, where a stop that cannot be written is noticed as silence."""
    Heartbeat(tmp_path / "session").stop()
    assert read_stop(tmp_path / "session") == "the session ended"
    (tmp_path / "file").touch()
    write_stop(tmp_path / "file", "over")
    assert read_stop(tmp_path / "file") is None
