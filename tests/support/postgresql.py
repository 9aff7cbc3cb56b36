"""A PostgreSQL server of a test's own, in a temporary folder, by a user without rights."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

# Folders of the server's programs on Debian.
_PLACES = "/usr/lib/postgresql/*/bin"


@contextmanager
def postgresql() -> Iterator[str]:
    """Start a server, and yield the URL of an empty database; skip where it is not installed."""
    programs = _programs()
    if programs is None:
        pytest.skip(f"no PostgreSQL here: neither initdb on PATH nor in {_PLACES} (Debian: apt install postgresql)")
    with tempfile.TemporaryDirectory(prefix="llmbench-pg-") as name:
        folder = Path(name)
        user = _unprivileged()
        if user is not None:
            shutil.chown(folder, user)
        data, log = folder / "data", folder / "log"
        _run(user, programs / "initdb", "--pgdata", data, "--username=llmbench", "--auth=trust", "--no-sync")
        # Only a socket in its own folder: no port that another test could have.
        options = f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off"
        _run(user, programs / "pg_ctl", "start", "--wait", "--pgdata", data, "--log", log, "--options", options)
        try:
            yield f"postgresql://llmbench@/postgres?host={folder}"
        finally:
            _run(user, programs / "pg_ctl", "stop", "--wait", "--mode=immediate", "--pgdata", data)


def _programs() -> Path | None:
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    return next(
        (path for path in sorted(Path("/").glob(_PLACES[1:]), reverse=True) if (path / "initdb").exists()), None
    )


def _unprivileged() -> str | None:
    """A user who may run the server, which refuses root; None for whoever runs this."""
    if os.getuid() != 0:
        return None
    return next(name for name in ("postgres", "nobody") if _is_user(name))


def _is_user(name: str) -> bool:
    try:
        return bool(pwd.getpwnam(name))
    except KeyError:
        return False


def _run(user: str | None, *command: str | Path) -> None:
    # Into a file: a server keeps the pipe of its parent, which would never end.
    with tempfile.TemporaryFile("w+") as said:
        done = subprocess.run(
            [*map(str, command)], user=user, cwd="/", stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT,
            check=False, timeout=120,
        )  # fmt: skip
        said.seek(0)
        assert done.returncode == 0, said.read()
