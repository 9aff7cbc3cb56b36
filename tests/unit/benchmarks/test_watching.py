"""The benchmark of the step log, without a training."""

from pathlib import Path

from benchmarks import watching
from pytest_llmbench.readers.steps.progress import event_lines, rank_logs


def test_every_second_step_is_left_out(tmp_path: Path) -> None:
    """With its phases, so that both kinds of steps are from the same seconds of one process."""
    with watching.EverySecond(watching.context_of(tmp_path)) as log:
        for step in range(1, 7):
            log.phase(step, "forward")
            log.step(seconds=1e-4, tokens=1, samples=1, loss=1.0, grad_norm=1.0, peak_memory_bytes=None)
    ((_, path),) = rank_logs(tmp_path)
    spent = [line.event.spent for line in event_lines(path) if line.event is not None and line.event.event == "step"]
    assert len(spent) == 3
    assert all(each is not None and each.phases is not None for each in spent)
    assert len(log.ends) == 6


def test_the_calls_of_a_step_take_less_than_it_does(tmp_path: Path) -> None:
    """A number of seconds of CPU time."""
    assert 0.0 < watching.calls(tmp_path, 20) < 0.1
