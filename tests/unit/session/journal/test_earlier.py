"""What a session that is resumed keeps of its earlier processes and makes again, and how a dead one is named."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_llmbench.cluster.runs import Plan, RunSpec, Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.system import System
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.record.records import Judgement, Problem, RunOutcome, RunRecord, Verdict, write_model
from pytest_llmbench.core.wire.fault import SimulatedFault, note_strike
from pytest_llmbench.session.ending import run_identity
from pytest_llmbench.session.journal.earlier import (
    Earlier,
    describe_dead_session,
    processes_of,
    put_aside,
    session_to_resume,
    take_over,
)
from pytest_llmbench.session.journal.journal import (
    EventKind,
    Journal,
    digest_of_plan,
    digest_of_record,
    now,
    read_journal,
)
from tests.unit.judging.conftest import small

SYSTEM = System(name="here", cluster="slurm", gpus_per_node=0)


def settings_of(folder: Path, **changes: Any) -> Settings:
    return Settings(system=SYSTEM, cluster="slurm", allocation="run", run_dir=folder, **changes)


SPEC = RunSpec(key="tiny", recipe=small())
REFERENCE: dict[str, Any] = {
    "name": "learns", "statistic": "loss_drop", "at_least": "0.01 nat", "why": "-", "source": "-", "date": "2026-01-01",
}  # fmt: skip


@pytest.fixture
def died(tmp_path: Path) -> Iterator[Callable[..., Earlier]]:
    """A session that died after its run had a record: with changes of it, written after its digest was taken."""
    session, opened = Session(id="s", folder=tmp_path / "s"), []

    def left(problem: Problem | None = None, **later: Any) -> Earlier:
        settings = settings_of(tmp_path)
        record = RunRecord.of(run_identity(SPEC, settings, session), RunOutcome(problem=problem))
        journal = Journal(session.folder / "journal")
        journal.note(now("began", host="n1", pid=1, cluster="slurm", tests=("a", "b")))
        journal.note(now("submitting", name="tiny", plan=digest_of_plan(SPEC, settings), job="llmbench-tiny"))
        journal.note(now("submitted", name="tiny", job_id="17"))
        journal.note(now("finished", name="tiny", record=digest_of_record(record)))
        write_model(record.path, record.model_copy(update=later))
        journal.close()
        opened.append(Journal(session.folder / "journal"))
        record.path.rename(record.path.with_name("earlier.json"))
        return Earlier(session, opened[-1], orphaned=False, asked_to_end=False)

    yield left
    for journal in opened:
        journal.close()


def test_a_final_record_is_kept(died: Callable[..., Earlier], tmp_path: Path) -> None:
    earlier = died(judgements=(Judgement(test="a", verdict=Verdict.PASS),))
    today = SPEC.model_copy(update={"recipe": small(references=[REFERENCE])})
    kept = earlier.finished(today, settings_of(tmp_path))
    assert isinstance(kept, RunRecord)
    assert kept.recipe.references == today.recipe.references != ()


@pytest.mark.parametrize("kind", ["rank_died", "hang", "launch_failed", "session_ended", "not_repeated", "gated"])
def test_a_problem_of_the_run_is_final(died: Callable[..., Earlier], tmp_path: Path, kind: Any) -> None:
    """Runs that an interruption ended, and those that depended on others or on other nodes, are made again."""
    found = died(Problem(kind=kind, message="-")).finished(SPEC, settings_of(tmp_path))
    assert found == "" if kind in {"session_ended", "not_repeated", "gated"} else isinstance(found, RunRecord)


@pytest.mark.parametrize(
    ("problem", "allocation", "counts"),
    [(None, "run", (1, 0, 1)), ("session_ended", "run", (0, 1, 1)), ("session_ended", "session", (0, 0, 2))],
)
def test_what_becomes_of_runs_is_counted(
    died: Callable[..., Earlier], tmp_path: Path, problem: Any, allocation: Any, counts: tuple[int, int, int]
) -> None:
    """Kept with their record; with a job, which is adopted only where it is of the run alone; and to be made."""
    plan = Plan(runs=(SPEC, SPEC.model_copy(update={"key": "new"})))
    earlier = died(problem and Problem(kind=problem, message="-"))
    assert earlier.counts(plan, replace(settings_of(tmp_path), allocation=allocation)) == counts


def test_no_job_of_a_session_that_ended_in_order_is_adopted(died: Callable[..., Earlier], tmp_path: Path) -> None:
    """After Ctrl-C it has cancelled them all."""
    earlier = died()
    assert earlier.can_adopt(SPEC, settings_of(tmp_path))
    earlier.asked_to_end = True
    assert not earlier.can_adopt(SPEC, settings_of(tmp_path))


def test_processes_of_another_session_of_the_same_name_are_left_alone(tmp_path: Path) -> None:
    """`--session-name nightly` in two folders: only the whole path is a session's own."""
    mine, other = (Session(id="nightly", folder=tmp_path / name / "nightly") for name in ("mine", "other"))
    argv = ["-c", "import time; time.sleep(60)", "llmbench.", f"{other.folder}/runs/a"]
    with subprocess.Popen([sys.executable, *argv]) as process:
        try:
            assert list(processes_of(mine)) == []
            assert list(processes_of(other)) == [process.pid]
        finally:
            process.kill()


@pytest.mark.parametrize("changed", ["recipe", "partition", "nodes", "simulate"])
def test_another_plan_is_another_run(died: Callable[..., Earlier], tmp_path: Path, changed: str) -> None:
    settings, run = settings_of(tmp_path), SPEC
    if changed == "recipe":
        run = SPEC.model_copy(update={"recipe": small(steps=SPEC.recipe.steps + 1)})
    elif changed == "partition":
        settings = settings_of(tmp_path, slurm={"partition": "other"})
    elif changed == "simulate":
        settings = settings_of(tmp_path, simulate=SimulatedFault.parse("die@1"))
    else:
        settings = settings_of(tmp_path, nodes=2)
    assert died().finished(run, settings) == "its plan has changed"


def test_an_adopted_run_keeps_its_fault(tmp_path: Path) -> None:
    """A run that was started with `--llmbench-simulate` is reported so by a resumed session without it."""
    session, settings = Session(id="s", folder=tmp_path / "s"), settings_of(tmp_path)
    folder = session.run_folder(SPEC.key)
    assert run_identity(SPEC, settings, session).simulated is None
    folder.mkdir(parents=True)
    note_strike(folder, 1, SimulatedFault.parse("die@1"))
    assert run_identity(SPEC, settings, session).simulated == "die@1"


def test_a_record_that_was_changed_is_not_kept(died: Callable[..., Earlier], tmp_path: Path) -> None:
    """A record that is cut is not kept either."""
    earlier, settings = died(nodes=7), settings_of(tmp_path)
    assert "not the one that was written" in str(earlier.finished(SPEC, settings))
    path = tmp_path / "s" / "runs" / "tiny" / "earlier.json"
    path.write_bytes(path.read_bytes()[:-20])
    assert "cannot be read" in str(earlier.finished(SPEC, settings))


def test_jobs_are_known_by_their_last_submission(died: Callable[..., Earlier]) -> None:
    """One whose answer is missing has no id, but the identity by which it is found."""
    earlier = died()
    assert [(submitting.name, job_id) for submitting, _, job_id in earlier.jobs] == [("tiny", "17")]
    earlier.journal.note(now("submitting", name="tiny", plan="x", job="llmbench-tiny", script="/s"))
    earlier.journal.earlier, _ = read_journal(earlier.journal.path)
    session = Session(id="s", folder=earlier.journal.path.parent)
    again = Earlier(session, earlier.journal, orphaned=False, asked_to_end=False)
    ((submitting, identity, job_id),) = again.jobs
    assert (job_id, submitting.plan, identity.token, identity.script) == ("", "x", "llmbench:s", "/s")
    assert [(job.id, job.identity.name) for job in again.submitted] == [("17", "llmbench-tiny")]


@pytest.mark.parametrize(("kind", "began", "pending", "explained"), [
    ("job_cancelled", False, False, True), ("job_cancelled", True, False, False),
    ("job_cancelled", False, True, False), ("job_timeout", False, False, False),
], ids=["by the watchman", "while it ran", "by a person", "at its limit"])  # fmt: skip
def test_a_job_that_was_cancelled_in_the_queue_is_made_again(
    died: Callable[..., Earlier], tmp_path: Path, kind: Any, began: bool, pending: bool, explained: bool
) -> None:
    """The watchman of the process that died did it, unless this process has seen the job wait or it has begun."""
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps" / "rank-00000.jsonl").write_text("x" if began else "")
    run = SimpleNamespace(place=SimpleNamespace(folder=tmp_path))
    active: Any = SimpleNamespace(run=run, was_pending=pending)
    assert died().explains(Problem(kind=kind, message="-"), active) is explained


def test_attempts_are_put_aside_one_beside_the_other(died: Callable[..., Earlier], tmp_path: Path) -> None:
    session = died().session
    put_aside(session, session.run_folder("tiny"))
    put_aside(session, session.run_folder("tiny"))  # nothing is left
    (tmp_path / "s" / "runs" / "tiny").mkdir()
    put_aside(session, session.run_folder("tiny"))
    assert sorted(path.name for path in (tmp_path / "s" / "superseded").iterdir()) == ["tiny.1", "tiny.2"]


def test_the_newest_session_that_did_not_end(tmp_path: Path) -> None:
    sessions: dict[str, tuple[EventKind, ...]] = {
        "1": ("began",), "2": ("began", "ended", "began"), "3": ("began", "ended"),
    }  # fmt: skip
    for name, kinds in sessions.items():
        journal = Journal(tmp_path / name / "journal")
        for kind in kinds:
            journal.note(now(kind))
        journal.close()
    (tmp_path / "4").mkdir()
    assert session_to_resume(tmp_path, "newest").id == "2"
    assert session_to_resume(tmp_path, "1").id == "1"
    assert session_to_resume(tmp_path / "5", str(tmp_path / "1")).id == "1"
    with pytest.raises(ConfigError, match="session 3 has ended"):
        take_over(session_to_resume(tmp_path, "3"), "slurm")
    (tmp_path / "3" / "journal").write_bytes(b"00000000 {}\n")
    with pytest.raises(ConfigError, match="line 1 of 1 is damaged"):
        session_to_resume(tmp_path, "newest")


@pytest.mark.parametrize("where", ["open", "rename"])
def test_a_session_that_is_read_only_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Its journal is immutable, or its file system read-only. Nothing is held open."""
    dead(tmp_path, "s", 1).close()
    (tmp_path / "s" / "runs" / "tiny").mkdir(parents=True)
    (tmp_path / "s" / "runs" / "tiny" / "record.json").write_text("{}")

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as patch:
        place: Any = os if where == "open" else Path
        patch.setattr(place, where, refuse)
        with pytest.raises(ConfigError, match=r"session s cannot go on: .*Read-only file system.*--replay"):
            take_over(Session(id="s", folder=tmp_path / "s"), "local")
    take_over(Session(id="s", folder=tmp_path / "s"), "local").journal.close()


@pytest.mark.parametrize(("place", "queue", "said"), [
    ("copy", (["17 (RUNNING)"], ""), r"is a copy of .*/first, where its jobs 17 \(RUNNING\) still write: go on there"),
    ("copy", ([], "no answer"), r"where jobs may still write \(no answer\)"),
    ("copy", ([], ""), ""),
    ("moved", (["17 (RUNNING)"], ""), ""),
    ("replaced", (["17 (RUNNING)"], ""), ""),
    ("first", (["17 (RUNNING)"], ""), ""),
])  # fmt: skip
def test_no_copy_of_a_session_takes_its_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, queue: tuple[list[str], str], said: str
) -> None:
    """They write into the original: a copy is refused while one runs, and has its runs made again afterwards."""
    monkeypatch.setattr("pytest_llmbench.session.journal.earlier._jobs_of", lambda _session: queue)
    script = str(tmp_path / "first" / "runs" / "tiny" / "logs" / "submission.sh")
    journal = Journal(tmp_path / "first" / "journal")
    journal.note(now("began", host=socket.gethostname(), pid=1, cluster="slurm", ttl_s=60.0, session="s"))
    plan = digest_of_plan(SPEC, settings_of(tmp_path))
    journal.note(now("submitting", name="tiny", plan=plan, job="llmbench-tiny", script=script))
    journal.close()
    (tmp_path / "first" / "owner").write_text("1")
    if place in {"moved", "replaced"}:
        (tmp_path / "first").rename(tmp_path / place)
    if place == "replaced":  # by another session of that name
        dead(tmp_path, "first", 1).close()
    elif place == "copy":
        shutil.copytree(tmp_path / "first", tmp_path / place)
    session = Session(id="s", folder=tmp_path / place)
    if said:
        with pytest.raises(ConfigError, match=said):
            take_over(session, "slurm")
        return
    earlier = take_over(session, "slurm")
    assert earlier.can_adopt(SPEC, settings_of(tmp_path)) is (place != "copy")
    earlier.journal.close()


def test_a_session_of_another_host_is_watched_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock may hold on one host alone; a sign of life that changes comes from a living process."""
    monkeypatch.setattr("pytest_llmbench.session.journal.earlier.PERIOD_S", 0.05)
    session = Session(id="s", folder=tmp_path)
    journal = Journal(tmp_path / "journal")
    journal.note(now("began", host="elsewhere", pid=7, cluster="slurm", ttl_s=60.0))
    journal.close()
    signs = iter(range(1000))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", beating(tmp_path / "owner", signs, Path.read_bytes))
        (tmp_path / "owner").write_text("0")
        with pytest.raises(ConfigError, match=r"session s still lives \(process 7 on elsewhere\)"):
            take_over(session, "slurm")
    earlier = take_over(session, "slurm")
    assert not earlier.orphaned
    earlier.journal.close()


@pytest.mark.parametrize(("ttl_s", "orphaned"), [(60.0, False), (15.0, True)])
def test_jobs_of_a_silent_session_may_have_ended(tmp_path: Path, ttl_s: float, orphaned: bool) -> None:
    journal = Journal(tmp_path / "journal")
    journal.note(now("began", host=socket.gethostname(), pid=7, cluster="slurm", ttl_s=ttl_s))
    journal.close()
    (tmp_path / "owner").write_text("9")
    os.utime(tmp_path / "owner", 2 * (time.time() - 20.0,))
    earlier = take_over(Session(id="s", folder=tmp_path), "slurm")
    assert earlier.orphaned is orphaned
    earlier.journal.close()


def beating(owner: Path, signs: Iterator[int], read: Callable[[Path], bytes]) -> Callable[[Path], bytes]:
    """Reading a file, where the sign of life is another one each time."""
    return lambda path: str(next(signs)).encode() if path == owner else read(path)


@pytest.fixture
def gone() -> Iterator[int]:
    """Id of a process that is over, and that no other has: nobody waits for it, and its parent lives."""
    with subprocess.Popen(["true"]) as process:
        process.wait()
        yield process.pid


def dead(run_dir: Path, name: str, pid: int, *kinds: EventKind, host: str = "") -> Journal:
    journal = Journal(run_dir / name / "journal")
    host = host or socket.gethostname()
    journal.note(now("began", host=host, pid=pid, cluster="local", session=name, tests=("test_a",)))
    for kind in kinds:
        journal.note(now(kind, name="test_a"))
    return journal


def test_the_newest_dead_session_is_told(tmp_path: Path, gone: int) -> None:
    assert describe_dead_session(tmp_path) is None
    dead(tmp_path, "first", gone).close()
    dead(tmp_path, "second", gone, "judged").close()
    assert describe_dead_session(tmp_path) == (
        f"session second (and 1 before it) never ended, and its process {gone} on {socket.gethostname()} is gone: "
        "1 of 1 tests judged, no process left; --resume=second goes on with it, llmbench prune deletes old ones"
    )


def test_what_lives_or_ended_is_not_told(tmp_path: Path, gone: int) -> None:
    dead(tmp_path, "ended", gone, "judged", "ended").close()
    dead(tmp_path, "ours", os.getpid()).close()
    dead(tmp_path, "another", os.getppid()).close()
    dead(tmp_path, "interrupted", gone).close()
    (tmp_path / "interrupted" / "verdict.json").write_text("{}")
    dead(tmp_path, "damaged", gone, "judged").close()
    damaged = tmp_path / "damaged" / "journal"
    damaged.write_bytes(damaged.read_bytes().replace(b"began", b"begun"))
    dead(tmp_path, "elsewhere", gone, host="login2").close()
    (tmp_path / "elsewhere" / "owner").write_text("1\n")
    owned = dead(tmp_path, "owned", gone)
    assert describe_dead_session(tmp_path) is None
    owned.close()
    assert "session owned never ended" in (describe_dead_session(tmp_path) or "")
    os.utime(tmp_path / "elsewhere" / "owner", (0, 0))
    assert "(and 1 before it)" in (describe_dead_session(tmp_path) or "")
