"""Of the tasks that srun says ended, those that ended first are told from those that it ended."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.readers.srun import blamed_node, cancel_reason, failed_node, first_to_end

# Printed by a real srun whose task 6 was killed.
KILLED = """\
srun: error: n4: task 6: Killed
srun: launch/slurm: _step_signal: Terminating StepId=17.0
slurmstepd-n1: error: *** STEP 17.0 ON n1 CANCELLED AT 2026-11-23T03:11:26 ***
Terminated
srun: error: n4: task 7: Terminated
srun: error: n1: task 0: Exited with exit code 143
srun: error: n3: tasks 4-5: Terminated
srun: Force Terminated StepId=17.0
"""
# The same, where tasks 1 and 5 ended with status 3 at about the same time.
EXITED = """\
srun: error: n5: task 1: Exited with exit code 3
srun: launch/slurm: _step_signal: Terminating StepId=18.0
slurmstepd-n5: error: *** STEP 18.0 ON n5 CANCELLED AT 2026-11-23T03:11:27 ***
srun: error: n7: task 5: Exited with exit code 3
srun: error: n5: task 0: Terminated
"""


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        (KILLED, [{6}]),
        (EXITED, [{1}]),
        (KILLED.partition("srun: launch")[0], [{6}]),
        (KILLED.replace("task 6: Killed", "tasks 4,6-7: Out Of Memory"), [{4, 6, 7}]),
        ("slurmstepd: error: *** STEP 17.0 ON n1 CANCELLED AT 2026 ***\nsrun: error: n1: task 0: Terminated\n", []),
        ("srun: error: Unable to create step for job 7: Job/step already completing\n", []),
        ("", []),
    ],
    ids=["killed", "exited", "cut", "out of memory", "cancelled", "not started", "nothing"],
)
def test_the_cause_comes_before_the_step_is_ended(text: str, ranks: list[set[int]]) -> None:
    assert [set(ended.ranks) for ended in first_to_end(text)] == ranks


# Printed by a real srun whose step was cancelled by scancel: on two nodes, and on one.
CANCELLED = """\
srun: Job step aborted: Waiting up to 7 seconds for job step to finish.
slurmstepd-n3: error: *** STEP 77.0 ON n3 CANCELLED AT 2026-11-23T03:29:08 ***
srun: error: n3: task 0: Killed
srun: launch/slurm: _step_signal: Terminating StepId=77.0
srun: error: n4: task 1: Killed
"""
CANCELLED_ON_ONE = """\
slurmstepd-n3: error: *** STEP 77.1 ON n3 CANCELLED AT 2026-11-23T03:29:15 ***
srun: Job step aborted: Waiting up to 7 seconds for job step to finish.
srun: error: n3: task 0: Killed
"""
ABORTED = """\
srun: Job step aborted: Waiting up to 7 seconds for job step to finish.
srun: error: n3: task 1: Terminated
slurmstepd-n2: error: *** STEP 72.1 ON n2 CANCELLED AT 2026-11-23T03:28:17 ***
"""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (CANCELLED, ""), (CANCELLED_ON_ONE, ""), (ABORTED, ""),
        (CANCELLED.replace("08 ***", "08 DUE TO TIME LIMIT ***"), "TIME LIMIT"), (KILLED, None), (EXITED, None),
        ("srun: error: Unable to create step for job 7: Job/step already completing\n", None), ("", None),
    ],
    ids=["two nodes", "one node", "aborted", "with a reason", "killed", "exited", "not started", "nothing"],
)  # fmt: skip
def test_a_step_that_somebody_ended_is_told_from_tasks_that_ended(text: str, why: str | None) -> None:
    assert cancel_reason(text) == why


def test_a_lost_node_is_named() -> None:
    assert failed_node("srun: error: Node failure on n8\nsrun: Job step aborted\n") == "n8"
    assert failed_node(KILLED) is None


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ("srun: error: Node failure on n8\nsrun: Job step aborted\n", "n8"),
        ("srun: error: Task launch for StepId=7.0 failed on node n8: Communication connection failure\n", "n8"),
        ("srun: error: Node failure on n8\nsrun: error: Node failure on n8\n", "n8"),
        ("srun: error: Node failure on n7\nsrun: error: Node failure on n8\n", None),
        ("srun: error: Node failure on n[7-8]\n", None),
        ("srun: error: Node failure on n9\n", None),
        ("srun: error: Node failure on n80\n", None),
        ("step 7: error: Node failure on n8, says the training\n", None),
        ("", None),
    ],
    ids=["failed", "not launched", "twice", "two", "a range", "of another job", "longer", "a program", "nothing"],
)
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
