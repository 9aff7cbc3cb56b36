"""The command line that began a session, by its journal."""

from pathlib import Path

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.wire import layout
from pytest_llmbench.core.wire.foreign import REDACTED
from pytest_llmbench.session.folder import read_events
from pytest_llmbench.session.journal.earlier import session_to_resume
from pytest_llmbench.session.signing import without_session_name

_RESUME = ("--resume", "--llmbench-resume")


def words_of(run_dir: Path, which: str = layout.NEWEST) -> tuple[Path, tuple[str, ...]]:
    """The folder of a session, by default of the newest that did not end, and the words of its first pytest.

    Raises:
        ConfigError: there is none; or its words held a secret, which no file has.
    """
    session = session_to_resume(run_dir, which)
    words = next((event.command for event in read_events(session.folder) if event.event == "began"), ())
    if any(REDACTED in word for word in words):
        raise ConfigError(
            f"session {session.id} was begun with a secret on its command line, which its journal does not have: give "
            "the arguments of pytest again, behind the session"
        )
    # A session keeps its name.
    return session.folder, tuple(word for word in without_session_name(words) if not word.startswith(_RESUME))
