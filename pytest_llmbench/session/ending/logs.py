"""Choice of the log to read first."""

from pathlib import Path

from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.core.wire import layout
from pytest_llmbench.readers.log import last_words

_OUTPUT = Path(layout.OUTPUT).name


def log_to_read(logs: Path, rank: int = 0) -> Path:
    """The first file with something in it of what a rank, a command or its launcher printed, else their folder.

    The step logs of the ranks are next to that folder.
    """
    patterns = (
        layout.printed(rank), f"*_{rank}_log.err", _OUTPUT, layout.SRUN,
        f"../{layout.STEPS}/{layout.step_log(rank)}", f"*_{rank}_log.out",
    )  # fmt: skip
    candidates = (path for pattern in patterns for path in sorted(logs.glob(pattern)))
    return next((path.resolve() for path in candidates if _says_something(path)), logs)


def with_log_to_read(record: RunRecord) -> RunRecord:
    """A record whose problem names a log with something in it, where there is one; by its whole path."""
    problem = record.problem
    if problem is None or problem.log is None:
        return record
    places = (Path(), record.logs, record.logs.parent / layout.STEPS, Path(record.folder) / layout.STEPS)
    named = next((place / problem.log for place in places if _says_something(place / problem.log)), None)
    log = named or log_to_read(record.logs)
    return record.model_copy(update={"problem": problem.model_copy(update={"log": str(log)})})


def _says_something(path: Path) -> bool:
    # The log of a command that printed nothing has a label all the same.
    return path.is_file() and path.stat().st_size > 0 and (path.name != _OUTPUT or last_words(path) != "")
