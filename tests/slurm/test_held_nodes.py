"""Nodes that a session holds, one of which fails: what ran there is retried elsewhere, and the rest goes on."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.session.agreement import Agreement
from tests.conftest import ASLEEP, UserFolder, Watch, steps_logged
from tests.slurm.conftest import Queue

pytestmark = pytest.mark.breaks_nodes
SLURM = ("--cluster", "slurm", "-k", "tiny")
LONG: dict[str, Any] = {"options": ASLEEP, "steps": 60, "time_limit": "00:05:00"}


@pytest.fixture
def sick(user: UserFolder, queue: type[Queue]) -> Callable[[str], None]:
    """A node that fails, and that its daemon brings back at once."""
    if os.geteuid() != 0:
        pytest.skip("only root can take a node down")

    def fail(node: str) -> None:
        queue.run("scontrol", "update", f"nodename={node}", "state=down", "reason=power supply")

    return fail


def hosts_of(session: Path, run: str) -> list[str]:
    """Where a run under way is, by what was written at its launch."""
    return list(json.loads((session / "runs" / run / "job.json").read_text())["hosts"])


def test_a_spare_node_replaces_one_that_failed(
    user: UserFolder, sick: Callable[[str], None], watch: type[Watch]
) -> None:
    """The run is made again in the same job. The attempt is kept; quarantine and record name the node."""
    user.recipe(**LONG)
    held = ("--nodes", "3", "--nodes-per-run", "2", "--llmbench-retries", "1", "--quarantine", "bad.txt")
    process = user.start(*SLURM, *held)
    session = user.wait_for(lambda session: watch.steps(session) > 1 and session)
    first = hosts_of(session, "tiny")
    sick(first[1])
    result = user.finish(process, code=0)
    record = result.record()
    (attempt,) = (session / "superseded").iterdir()
    before = json.loads((attempt / "record.json").read_text())
    assert before["problem"]["kind"] == "job_node_fail"
    assert before["lost_nodes"] == record["lost_nodes"] == record["avoided_nodes"] == [first[1]]
    assert before["job_id"] == record["job_id"]
    assert first[1] not in record["hosts"]
    assert record["superseded"] == [f"job_node_fail: {before['problem']['message']}"]
    assert f"{first[1]} failed under tiny: later runs of this session avoid it" in result.text
    assert first[1] in (user.path / "bad.txt").read_text()
    agreement, whole = Agreement(session), RunRecord.read(session / "runs" / "tiny" / "record.json")
    assert agreement.objections(whole) == []
    for name in ("superseded", "lost_nodes", "avoided_nodes"):  # none can be taken out of the record unseen
        assert f"not in {name}" in "\n".join(agreement.objections(whole.model_copy(update={name: ()})))


@pytest.mark.parametrize("only", [None, "n1"], ids=["others", "no other"])
def test_jobs_of_their_own_avoid_a_node_that_failed(
    user: UserFolder, sick: Callable[[str], None], watch: type[Watch], queue: type[Queue], only: str | None
) -> None:
    user.recipe(**LONG)
    process = user.start(*SLURM, "--llmbench-retries", "1", *(("--slurm", f"nodelist={only}") if only else ()))
    session = user.wait_for(lambda session: watch.steps(session) > 1 and session)
    (job,) = queue.jobs_of(session)
    lost = queue.run("squeue", "--noheader", "--format=%N", f"--jobs={job}").strip()
    sick(lost)
    result = user.finish(process, code=0)
    record = result.record()
    assert record["lost_nodes"] == [lost]
    assert record["avoided_nodes"] == ([] if only else [lost])
    assert (record["hosts"] == [lost]) is (only is not None)
    assert (f"may get {lost} again: there are too few other nodes" in result.text) is (only is not None)


def test_what_fits_on_nodes_left_still_runs(user: UserFolder, sick: Callable[[str], None], watch: type[Watch]) -> None:
    user.recipe(**LONG)
    user.recipe("tiny2")
    process = user.start(*SLURM, "--nodes", "2", "--nodes-per-run", "1", "-n2")
    session = user.wait_for(
        lambda session: all(steps_logged(session, f"tiny-group{group}") > 1 for group in (1, 2)) and session
    )
    (lost,) = hosts_of(session, "tiny-group2")
    sick(lost)
    result = user.finish(process)
    assert [result.record(f"{name}-group1")["problem"] for name in ("tiny", "tiny2")] == [None, None], result.text
    assert result.record("tiny-group2")["problem"]["kind"] == "job_node_fail"
    problem = result.record("tiny2-group2")["problem"]
    assert problem["kind"] == "allocation"
    assert f"the allocation has lost {lost}" in problem["message"]


def test_new_nodes_are_held_where_too_few_are_left(
    user: UserFolder, sick: Callable[[str], None], watch: type[Watch], queue: type[Queue]
) -> None:
    """The first node may fail too, which runs the process that holds the others."""
    user.recipe(**LONG)
    user.recipe("tiny2")
    process = user.start(*SLURM, "--nodes", "2", "--llmbench-retries", "1")
    session = user.wait_for(lambda session: watch.steps(session) > 1 and session)
    (old,) = queue.jobs_of(session)
    lost = hosts_of(session, "tiny")[0]
    sick(lost)
    result = user.finish(process, code=0)
    for name in ("tiny", "tiny2"):
        assert lost not in result.record(name)["hosts"]
        assert result.record(name)["job_id"] != old
