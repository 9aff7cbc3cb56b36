"""What records say of who made them, and what a session leaves behind."""

import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.cluster.runs import Declared, new_session, session_name
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.paths import shipped
from pytest_llmbench.core.recipe.recipes import load_recipes
from pytest_llmbench.core.record.records import Problem, RunRecord, Timings
from pytest_llmbench.session.ending import sweep
from pytest_llmbench.session.record_store import KeptRuns
from pytest_llmbench.session.signing import PytestCommand


@pytest.fixture(scope="module")
def record() -> RunRecord:
    return RunRecord(
        session="s", key="tiny-repeat2", repeat=2, token="t", recipe=load_recipes([shipped("recipes")])["opt125m"],
        system="local", cluster="local", allocation="run", nodes=1, ranks=1, gpus=0, folder="f",
        timings=Timings(submitted=1e9, started=1e9 + 1.5),
    )  # fmt: skip


def command(words: str, selection: tuple[str, ...] = ("suites/a.py",), **changes: Any) -> PytestCommand:
    """A command line, with two tests of `tiny` and one of another run."""
    tests = (
        Declared(test="suites/a.py::test_it[tiny-fast]", run="tiny"),
        Declared(test="suites/a.py::test_it[tiny-learns]", run="tiny"),
        Declared(test="suites/a.py::test_it[other]", run="other"),
        Declared(test="suites/a.py::test_fit[tiny]", check="tiny"),
    )
    known = {"version": "1", "directory": Path("/home/me"), "root": Path("/home/me"), "tests": tests}
    return PytestCommand(words=shlex.split(words), selection=selection, **{**known, **changes})


BOTH = "'suites/a.py::test_it[tiny-fast]' 'suites/a.py::test_it[tiny-learns]'"


@pytest.mark.parametrize(("words", "again"), [
    ("suites/a.py --cluster local", "--cluster local"), ("--llmbench-session-name nightly suites/a.py -q", "-q"),
    ("--llmbench-session-name=nightly --resume=old suites/a.py", ""),
    ("suites/a.py --nodes 8 --resume", "--nodes 8"), ("--resume old suites/a.py -k 'a b'", "-k 'a b'"),
    ("-k suites/a.py suites/a.py", "-k suites/a.py"), ("-n2 suites/a.py --system=my.yaml", "-n2 --system=my.yaml"),
])  # fmt: skip
def test_a_run_is_made_again_by_its_tests(record: RunRecord, words: str, again: str) -> None:
    told = command(words).sign(record, tuple)
    assert told.reproduce == " ".join(f"cd /home/me && pytest {again} {BOTH}".split())
    assert told.command == tuple(shlex.split(words))


def test_times_have_a_zone_and_paths_are_those_of_the_start(record: RunRecord) -> None:
    """A missing time is None, and node ids are relative to where pytest was started."""
    told = command("a.py", ("a.py",), directory=Path("/home/me/suites")).sign(record, tuple)
    assert "'a.py::test_it[tiny-fast]'" in told.reproduce
    assert told.submitted is not None
    assert told.submitted.startswith("2001-09-0")
    assert told.submitted[-6] in "+-"
    assert told.ended is None


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-a", ".a", "latest", "a b", "ä", "a" * 101, "a\n"])
def test_a_name_that_could_be_no_folder_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="letters, digits"):
        session_name(name)


def test_a_name_is_given_once(tmp_path: Path) -> None:
    """Jobs and logs have the id, which two sessions of one name in two folders do not share."""
    first, other = (new_session(tmp_path / run_dir, session_name("nightly-1")) for run_dir in "ab")
    assert first.folder == tmp_path / "a" / "nightly-1"
    assert first.id != other.id
    assert first.token == f"llmbench:{first.id}"
    first.folder.mkdir(parents=True)
    with pytest.raises(ConfigError, match="nightly-1 exists: give another name"):
        new_session(tmp_path / "a", "nightly-1")


def test_what_jobs_executed_goes_and_evidence_stays(record: RunRecord, tmp_path: Path) -> None:
    """Of a broken run everything stays that explains it, of a sane one also what its ranks printed."""
    kept = {"logs/7_0_log.out", "logs/rank-0.log", "steps/rank-00000.jsonl", "record.json"}
    gone = {"logs/7_submitted.json", "logs/7_0_result.json", "logs/7_0_log.err"}
    for key in ("sane", "broken"):
        for name in (*kept, *gone, "phase/rank-00000"):
            path = tmp_path / "runs" / key / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("" if name in {"logs/7_0_log.err", "logs/rank-0.log"} else "x")
    mine = tmp_path / "runs" / "sane" / "mine.pkl"
    mine.write_text("a file of the framework")
    broken = record.model_copy(update={"problem": Problem(kind="hang", message="m")})
    runs = KeptRuns(lambda *_: None)
    runs.keep(record.model_copy(update={"key": "sane"}), None)
    runs.keep(broken.model_copy(update={"key": "broken"}), None)
    sweep(tmp_path, [key for key, run in runs.summaries.items() if run.is_sane])
    left = {
        key: {os.fspath(p.relative_to(tmp_path / "runs" / key)) for p in (tmp_path / "runs" / key).rglob("*.*")}
        for key in ("sane", "broken")
    }
    assert left == {"sane": kept | {"mine.pkl"}, "broken": kept}
    assert not (tmp_path / "runs" / "sane" / "phase").exists()
    assert (tmp_path / "runs" / "broken" / "phase" / "rank-00000").exists()
