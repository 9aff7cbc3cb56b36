"""Of the tasks that srun says ended, those that ended first are told from those that it ended."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.readers.srun import blamed_node, cancel_reason, failed_node, first_to_end

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
