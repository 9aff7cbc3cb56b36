"""A run is ended when it makes no progress, by a clock of our own."""

import json
from pathlib import Path

import pytest

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.record.records import Problem
from pytest_llmbench.session import watch as module
from pytest_llmbench.session.watch import Watch
from tests.conftest import TINY, TORCH, known

pytestmark = pytest.mark.usefixtures("unigram")


class Clock:
    """A clock that moves when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def look(self, watch: Watch, after_s: float) -> Problem | None:
        self.now += after_s
        return watch.look()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def watched(folder: Path, limit_min: int = 60, startup_s: float | None = 30.0) -> Watch:
    deadlines = {"startup_s": startup_s, "hang_factor": 10, "hang_floor_s": 5}
    recipe = Recipe.model_validate({**TINY, **TORCH, "name": "tiny", "deadlines": deadlines})
    return Watch(recipe, folder, limit_min)


def log_step(folder: Path, number: int, seconds: float) -> None:
    path = folder / "steps" / "rank-00000.jsonl"
    path.parent.mkdir(exist_ok=True)
    event = {
        "event": "step", "step": number, "seconds": seconds, "tokens": 1, "samples": 1, "loss": 1.0, "grad_norm": 1.0,
        "peak_memory_bytes": None, "time": 1.0, "logged": 1.0,
    }  # fmt: skip
    with path.open("a") as log:
        log.write(json.dumps(event) + "\n")


def stand(folder: Path, **ranks: str) -> None:
    (folder / "phase").mkdir(exist_ok=True)
    for rank, where in ranks.items():
        (folder / "phase" / f"rank-{int(rank[1:]):05d}").write_text(where)


def ended(watch: Watch, clock: Clock, after_s: float) -> Problem | None:
    """Why a run is ended that seems to hang, once its ranks had the time to answer with their stacks."""
    assert clock.look(watch, after_s) is None
    return clock.look(watch, 15.0)


def answer(folder: Path, *ranks: int, stack: str = "    wait (gloo.py:3)", to: int = 1) -> None:
    assert (folder / "asked").read_text() == str(to)
    (folder / "stacks").mkdir(exist_ok=True)
    for rank in ranks:
        text = f'{to}\nThread "MainThread" of process 7:\n{stack}\nThread "other" of process 7:\n    idle (x.py:1)\n'
        (folder / f"stacks/rank-{rank:05d}.txt").write_text(text)


def test_progress_keeps_a_run_alive(tmp_path: Path, clock: Clock) -> None:
    watch = watched(tmp_path)
    for number in range(1, 9):
        log_step(tmp_path, number, seconds=2.0)
        assert clock.look(watch, 19.0) is None
    assert watch.progress is not None
    assert watch.progress.step == 8


def test_no_first_step(tmp_path: Path, clock: Clock) -> None:
    watch = watched(tmp_path)
    stand(tmp_path, r0="0 matmul 0", r1="0 start 0")
    assert clock.look(watch, 29.0) is None
    problem = known(ended(watch, clock, 2.0))
    assert problem.kind == "no_start"
    assert "rank 1 stands in start" in problem.message


def test_a_framework_that_logs_no_step_has_its_time_limit(tmp_path: Path, clock: Clock) -> None:
    """Without a time for its start, silence ends a run at the limit alone; once it logs steps, a hang does again."""
    watch = watched(tmp_path, limit_min=60, startup_s=None)
    assert clock.look(watch, 3600.0) is None
    problem = known(clock.look(watch, 1.0))
    assert problem.kind == "time_limit"

    watch = watched(tmp_path, startup_s=None)
    log_step(tmp_path, 1, seconds=0.1)
    assert watch.look() is None
    problem = known(clock.look(watch, 6.0))
    assert problem.kind == "hang"


def test_a_hang_is_many_times_a_step(tmp_path: Path, clock: Clock) -> None:
    """No step for `hang_factor` times the median step is a hang, but never before `hang_floor_s`."""
    watch = watched(tmp_path)
    log_step(tmp_path, 1, seconds=0.1)
    assert watch.look() is None
    assert clock.look(watch, 4.9) is None
    problem = known(clock.look(watch, 0.6))
    assert problem.kind == "hang"
    assert "after step 1 of 8" in problem.message


def test_ranks_that_do_not_end(tmp_path: Path, clock: Clock) -> None:
    watch = watched(tmp_path)
    log_step(tmp_path, 8, seconds=0.1)
    stand(tmp_path, r0="8 done 0", r1="8 optimizer 0")
    assert watch.look() is None
    problem = known(ended(watch, clock, 6.0))
    assert problem.kind == "no_end"
    assert "rank 1 stands in optimizer of step 8" in problem.message


def test_the_time_limit(tmp_path: Path, clock: Clock) -> None:
    watch = watched(tmp_path, limit_min=1)
    for number in range(1, 4):
        log_step(tmp_path, number, seconds=20.0)
        assert clock.look(watch, 19.0) is None
    problem = known(clock.look(watch, 4.0))
    assert problem.kind == "time_limit"
    assert "00:01:00" in problem.message
    assert "step 3 of 8" in problem.message


def hanging(folder: Path, clock: Clock) -> Watch:
    """The watch of a run of two ranks without a step for 6 s, which has been asked for its stacks."""
    watch = watched(folder)
    log_step(folder, 1, seconds=0.1)
    stand(folder, r0="2 sync 1", r1="2 forward 1")
    assert watch.look() is None
    assert clock.look(watch, 6.0) is None
    return watch


def test_a_hang_ends_with_the_stacks(tmp_path: Path, clock: Clock) -> None:
    watch = hanging(tmp_path, clock)
    answer(tmp_path, 0)
    assert clock.look(watch, 1.0) is None
    answer(tmp_path, 1)
    problem = known(clock.look(watch, 1.0))
    assert problem.kind == "hang"
    assert "rank 1 stands in forward of step 2, micro batch 1, while others wait in sync" in problem.message
    assert problem.message.endswith(f"; stacks of 2 of 2 ranks: {tmp_path}/stacks")


def test_a_rank_that_cannot_answer_is_named(tmp_path: Path, clock: Clock) -> None:
    """A process that stands still has no stack: the state that another rank saw is told, or that none is known."""
    watch = hanging(tmp_path, clock)
    answer(tmp_path, 0)
    problem = known(clock.look(watch, 15.0))
    silent = "stacks of 1 of 2 ranks: {}; rank 1 cannot answer: {}"
    assert silent.format(tmp_path / "stacks", "its process or its node stands still") in problem.message
    watch = hanging(tmp_path, clock)
    answer(tmp_path, 0, to=2)
    (tmp_path / "stacks/rank-00001.txt").write_text("2\nthe process is stopped (T)\n")
    problem = known(clock.look(watch, 1.0))
    assert problem.message.endswith("rank 1 cannot answer: the process is stopped (T)")


def test_a_slow_run_that_moves_goes_on(tmp_path: Path, clock: Clock) -> None:
    """A rank that goes on to its next micro batch is slow, and does not hang."""
    watch = hanging(tmp_path, clock)
    stand(tmp_path, r1="2 forward 2")
    answer(tmp_path, 0, 1)
    for passed in (1.0, 4.0):
        assert clock.look(watch, passed) is None
    assert ended(watch, clock, 2.0) is not None


@pytest.mark.parametrize(("place", "words"), [
    ("/lib/torch/_dynamo/convert_frame.py", "compiles"),
    ("/lib/torch/distributed/checkpoint/state_dict_saver.py", "reads or writes a checkpoint"),
])  # fmt: skip
def test_a_known_pause_is_not_a_hang(tmp_path: Path, clock: Clock, place: str, words: str) -> None:
    """A rank that compiles or writes a checkpoint, by its stack, has `deadlines.pause_s`; a thread at rest does not."""
    watch = hanging(tmp_path, clock)
    began, problem = clock.now - 6.0, None
    while problem is None:
        to = int((tmp_path / "asked").read_text())
        answer(tmp_path, 0, to=to)
        answer(tmp_path, 1, stack=f"    call ({place}:7)", to=to)
        problem = clock.look(watch, 5.0)
    assert 1800.0 < clock.now - began < 1820.0
    assert to > 20  # the stacks are those of now
    assert f"a process {words} for longer than deadlines.pause_s, 1800 s" in problem.message


def test_what_took_long_before_may_do_so_again(tmp_path: Path, clock: Clock) -> None:
    """After a first step of 100 s, a pause of 150 s may compile another shape; one of 201 s is a hang."""
    watch = watched(tmp_path)
    for number in range(1, 8):
        log_step(tmp_path, number, seconds=100.0 if number == 1 else 0.1)
        assert clock.look(watch, 1.0) is None
    assert clock.look(watch, 150.0) is None
    assert not (tmp_path / "asked").exists()
    clock.look(watch, 51.0)
    assert (tmp_path / "asked").exists()
