"""TensorBoard events: the steps of each run, and its statistics at its last step."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.files import make_folder
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.reporting.base import FinishedSession


def write_events(session: FinishedSession, folder: Path) -> list[Path]:
    """Write a folder of events for each run that has steps: `tensorboard --logdir FOLDER` shows them.

    Raises:
        ConfigError: the extra `export` is not installed, or the folder of a run has something else in it.
        OSError: it cannot be written.
    """
    try:
        from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415  # an extra, and slow
        from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415  # likewise
        from tensorboard.summary.writer.event_file_writer import EventFileWriter  # noqa: PLC0415  # likewise
    except ImportError as error:
        raise ConfigError(f"TensorBoard events need pip install pytest-llmbench[export]: {error}") from error
    written = []
    for key, record in session.runs.items():
        if not record.steps:
            continue
        target = folder / key
        _empty(target)
        make_folder(target)
        writer = EventFileWriter(str(target))
        for step, time, values in _scalars(record):
            told = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
            writer.add_event(Event(wall_time=time, step=step, summary=told))
        writer.close()
        written.append(target)
    return written


def _empty(target: Path) -> None:
    """Make room for new events: two files of one run would be shown as one, with each step twice."""
    if not target.exists():
        return
    if strangers := [path for path in target.iterdir() if "tfevents" not in path.name]:
        raise ConfigError(
            f"{target} has {strangers[0].name} in it, which llmbench has not written: give another --output"
        )
    shutil.rmtree(target)


def _scalars(record: RunRecord) -> Iterator[tuple[int, float, dict[str, float]]]:
    """Yield step, Unix time and values by tag. A step without a time gets that of the end of the run, or 0."""
    ended = record.timings.ended or 0.0
    for step in record.steps:
        values = {
            "step/seconds": step.seconds,
            "step/loss": step.loss,
            "step/grad_norm": step.grad_norm,
            "step/peak_memory_bytes": step.peak_memory_bytes,
            "step/tokens_per_second": step.tokens / step.seconds if step.tokens and step.seconds else None,
        }
        yield step.step, step.at or ended, {tag: value for tag, value in values.items() if value is not None}
    last = record.steps[-1].step
    yield last, ended, {f"statistic/{name} ({metric.unit})": metric.value for name, metric in record.metrics.items()}
