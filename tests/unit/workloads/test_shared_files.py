"""Files between machines."""

from __future__ import annotations

from pathlib import Path

from pytest_llmbench.workloads.shared_files import exists_now, write_whole


def test_a_written_file_is_there_and_alone(tmp_path: Path) -> None:
    """Writing leaves the file with its content and no draft beside it."""
    path = tmp_path / "file"
    assert not exists_now(path)
    write_whole(path, "text")
    assert exists_now(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "text"


def test_a_missing_folder_holds_no_file(tmp_path: Path) -> None:
    """Asking for a file in a folder that does not exist is answered, not raised."""
    assert not exists_now(tmp_path / "gone" / "file")
