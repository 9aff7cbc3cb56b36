"""The folder of a session, as people name it."""

from pathlib import Path

from pytest_llmbench.core.errors import ConfigError

RUN_DIR = Path("reports")


def session_folder(given: str | Path, run_dir: Path = RUN_DIR) -> Path:
    """The folder of a session that is named by its path, or by its id, its name or `latest` in a folder of sessions.

    Raises:
        ConfigError: there is none.
    """
    for place in (Path(given), run_dir / given):
        if place.is_dir():
            return place
    raise ConfigError(f"there is no session {str(given)!r}: it is neither a folder nor an id in {run_dir}")
