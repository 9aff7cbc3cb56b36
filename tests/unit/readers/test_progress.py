"""How far a run is, who holds it up, and of the tasks that srun says ended, which ended first."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.record.series import Progress
from pytest_llmbench.core.wire.step_events import EndEvent, FailureEvent, MatmulEvent, StepEvent
from pytest_llmbench.readers.srun import blamed_node, cancel_reason, failed_node, first_to_end
from pytest_llmbench.readers.steps.progress import RankPhase, laggards, last_step, phases


def step(number: int) -> bytes:
    return StepEvent(
        step=number, seconds=0.5, tokens=64, samples=2, loss=2.0, grad_norm=1.0, peak_memory_bytes=None, time=1.7e9,
        logged=1.7e9,
    ).line()  # fmt: skip


def write_log(folder: Path, content: bytes) -> None:
    (folder / "steps").mkdir(exist_ok=True)
    (folder / "steps/rank-00000.jsonl").write_bytes(content)


def stand(folder: Path, *lines: str) -> None:
    (folder / "phase").mkdir(exist_ok=True)
    for rank, line in enumerate(lines):
        (folder / f"phase/rank-{rank:05d}").write_text(line.ljust(63) + "\n")


def test_before_its_first_step_a_run_has_no_progress(tmp_path: Path) -> None:
    assert last_step(tmp_path) is None
    write_log(tmp_path, b"")
    assert last_step(tmp_path) is None
    write_log(tmp_path, MatmulEvent(flops_per_s=1e12).line())
    assert last_step(tmp_path) is None


@pytest.mark.parametrize("after", [
    b"", step(4)[:-1], step(4)[:20] + b"\n", b"garbage\n", b'{"event": "step"}\n', b"[" * 5000 + b"\n",
    EndEvent(steps=3, time=1.7e9).line(), FailureEvent(error="\N{PILE OF POO}" * 2000, time=1.0).line(),
])  # fmt: skip
def test_progress_is_the_last_whole_step(tmp_path: Path, after: bytes) -> None:
    write_log(tmp_path, b"".join(step(number % 3 + 1) for number in range(3000)) + after)
    assert last_step(tmp_path) == Progress(step=3, seconds=0.5)


@given(st.binary(max_size=200))
def test_no_bytes_make_looking_fail(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.getbasetemp()
    write_log(folder, content)
    stand(folder, "1 forward 1")
    (folder / "phase/rank-00000").write_bytes(content)
    assert last_step(folder) is None
    laggards(folder)


def test_phases_are_read_by_rank(tmp_path: Path) -> None:
    """Each rank's file is its step, phase and micro batch; one that is being written just now is left out."""
    stand(tmp_path, "7 forward 2", "6 optimizer 0", "", "7 forward", "seven forward 1")
    (tmp_path / "phase/rank-later").write_text("1 data 1\n")
    assert phases(tmp_path) == {
        0: RankPhase(step=7, phase="forward", micro_batch=2),
        1: RankPhase(step=6, phase="optimizer", micro_batch=0),
    }


def test_positions_follow_the_order_of_time() -> None:
    """Within a step micro batches go through their phases one after the other, and the optimizer is last."""
    lines: list[tuple[int, str, int]] = [(0, "start", 0), (0, "matmul", 0)]
    for number in (1, 2):
        for micro_batch in (1, 2):
            lines += [(number, phase, micro_batch) for phase in ("data", "forward", "backward")]
        lines.append((number, "optimizer", 0))
    lines.append((2, "done", 0))
    positions = [RankPhase(step=number, phase=phase, micro_batch=mb).position for number, phase, mb in lines]
    assert positions == sorted(positions)
    assert len(set(positions)) == len(positions)


@pytest.mark.parametrize(("lines", "told"), [
    ([], "no rank said where it stands"),
    (["0 start 0"], "all 1 ranks stand in start of step 0"),
    (["3 backward 2"] * 2, "all 2 ranks stand in backward of step 3, micro batch 2"),
    (["3 backward 1", "3 forward 1"],
     "rank 1 stands in forward of step 3, micro batch 1, while others wait in backward of step 3, micro batch 1"),
    (["3 forward 4", "3 backward 3"],
     "rank 1 stands in backward of step 3, micro batch 3, while others wait in forward of step 3, micro batch 4"),
    (["3 optimizer 0", "3 backward 4"],
     "rank 1 stands in backward of step 3, micro batch 4, while others wait in optimizer of step 3"),
    (["4 data 1", "3 optimizer 0"],
     "rank 1 stands in optimizer of step 3, while others wait in data of step 4, micro batch 1"),
    (
        ["1 forward 1"] * 10 + ["2 data 1"],
        (
            "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more stand in forward of step 1, micro batch 1, "
            "while others wait in data of step 2, micro batch 1"
        ),
    ),
])  # fmt: skip
def test_those_behind_are_named(tmp_path: Path, lines: list[str], told: str) -> None:
    stand(tmp_path, *lines)
    assert laggards(tmp_path) == told


# A printed text of tests/data/srun.
KILLED, EXITED, CANCELLED, CANCELLED_ON_ONE, ABORTED = (
    (Path(__file__).parents[2] / "data" / "srun" / f"{name}.txt").read_text("utf-8")
    for name in ("killed", "exited", "cancelled", "cancelled_on_one", "aborted")
)


@pytest.mark.parametrize(("text", "ranks"), [
    (KILLED, [{6}]), (EXITED, [{1}]), (KILLED.partition("srun: launch")[0], [{6}]),
    (KILLED.replace("task 6: Killed", "tasks 4,6-7: Out Of Memory"), [{4, 6, 7}]),
    ("slurmstepd: error: *** STEP 17.0 ON n1 CANCELLED AT 2026 ***\nsrun: error: n1: task 0: Terminated\n", []),
    ("srun: error: Unable to create step for job 7: Job/step already completing\n", []), ("", []),
], ids=["killed", "exited", "cut", "out of memory", "cancelled", "not started", "nothing"])  # fmt: skip
def test_the_cause_comes_before_the_step_is_ended(text: str, ranks: list[set[int]]) -> None:
    assert [set(ended.ranks) for ended in first_to_end(text)] == ranks


@pytest.mark.parametrize(("text", "why"), [
    (CANCELLED, ""), (CANCELLED_ON_ONE, ""), (ABORTED, ""),
    (CANCELLED.replace("08 ***", "08 DUE TO TIME LIMIT ***"), "TIME LIMIT"), (KILLED, None), (EXITED, None),
    ("srun: error: Unable to create step for job 7: Job/step already completing\n", None), ("", None),
], ids=["two nodes", "one node", "aborted", "with a reason", "killed", "exited", "not started", "nothing"])  # fmt: skip
def test_a_step_that_somebody_ended_is_told_from_tasks_that_ended(text: str, why: str | None) -> None:
    assert cancel_reason(text) == why


def test_a_lost_node_is_named() -> None:
    assert failed_node("srun: error: Node failure on n8\nsrun: Job step aborted\n") == "n8"
    assert failed_node(KILLED) is None


@pytest.mark.parametrize(("text", "node"), [
    ("srun: error: Node failure on n8\nsrun: Job step aborted\n", "n8"),
    ("srun: error: Task launch for StepId=7.0 failed on node n8: Communication connection failure\n", "n8"),
    ("srun: error: Node failure on n8\nsrun: error: Node failure on n8\n", "n8"),
    ("srun: error: Node failure on n7\nsrun: error: Node failure on n8\n", None),
    ("srun: error: Node failure on n[7-8]\n", None),
    ("srun: error: Node failure on n9\n", None),
    ("srun: error: Node failure on n80\n", None),
    ("step 7: error: Node failure on n8, says the training\n", None),
    ("", None),
], ids=["failed", "not launched", "twice", "two", "a range", "of another job", "longer", "a program",
        "nothing"])  # fmt: skip
def test_a_node_is_blamed_if_slurm_names_one_of_the_job(text: str, node: str | None) -> None:
    """Nobody avoids a node for what a program printed, or for a name that may be several."""
    assert blamed_node(text, ("n7", "n8")) == node


@pytest.mark.parametrize("tasks", ["0-99999999999", "3,0-999999999,5", "9" * 5000, "4-" + "9" * 5000, "1-2-3"])
def test_tasks_that_no_step_has_are_left_out(tasks: str) -> None:
    (ended,) = first_to_end(f"srun: error: n1: tasks {tasks}: Killed")
    assert ended.ranks <= {3, 5}


@given(st.text())
def test_any_text_can_be_read(text: str) -> None:
    cancel_reason(text)
    failed_node(text)
    blamed_node(text, ("n1",))
    first_to_end(text)
    first_to_end(f"srun: error: n1: tasks {text}: Killed")
