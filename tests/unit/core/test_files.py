"""Files that are replaced whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_llmbench.core.files import write_text


def names(folder: Path) -> list[str]:
    """Names of everything in a folder, hidden files too."""
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_written_with_its_folder_and_nothing_beside_it(tmp_path: Path) -> None:
    """The folder is made, the content is there, everybody may read it, and no draft is left."""
    path = tmp_path / "new/folder/file"
    write_text(path, "first")
    write_text(path, "wörd\n")
    assert path.read_text(encoding="utf-8") == "wörd\n"
    assert path.stat().st_mode & 0o777 == 0o644
    assert names(path.parent) == ["file"]


def test_a_failed_write_keeps_the_old_content(tmp_path: Path) -> None:
    """A text that cannot be encoded fails halfway: the old file is whole and no draft is left."""
    path = tmp_path / "file"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "x" * 100_000 + "\ud800")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_a_failed_replacement_keeps_the_old_content(tmp_path: Path) -> None:
    """Where the target cannot be replaced, such as by a folder of its name, no draft is left."""
    (tmp_path / "file").mkdir()
    with pytest.raises(OSError, match="file"):
        write_text(tmp_path / "file", "new")
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").is_dir()
