"""Files between machines."""

from pathlib import Path

from pytest_llmbench.workloads.node.shared_files import exists_now


def test_a_written_file_is_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert not exists_now(path)
    path.write_text("text")
    assert exists_now(path)


def test_a_missing_folder_holds_no_file(tmp_path: Path) -> None:
    assert not exists_now(tmp_path / "gone" / "file")
