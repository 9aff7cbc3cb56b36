"""Files that one process writes while others read them."""

import contextlib
import os
import tempfile
from pathlib import Path

# Of files that a job executes or that may hold what others must not see.
PRIVATE = 0o600


def make_folder(path: Path) -> None:
    """Create a folder, and those above it that are missing, for this user alone whatever the umask is.

    Jobs execute what lies in the folders of a session: other users may not put anything there.
    """
    for each in reversed([path, *path.parents]):
        if not each.is_dir():
            each.mkdir(mode=0o700, exist_ok=True)


def make_private(folder: Path) -> None:
    """Keep the files of a folder that others made to this user: what submitit pickles, a job executes."""
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # it is renamed or taken away just now
            if not path.is_symlink() and path.is_file():
                path.chmod(PRIVATE)


def write_text(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Replace a file's content in one step, creating its folder: readers see the old file or the new one, whole."""
    make_folder(path.parent)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
