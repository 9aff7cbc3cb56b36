"""Today's recipe decides what had to run, and what records say of who made them."""

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.cluster.runs import Declared, new_session, session_name
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.paths import shipped
from pytest_llmbench.core.recipe.recipes import Recipe, load_recipes
from pytest_llmbench.core.record.records import Problem, RunRecord, Timings
from pytest_llmbench.session import law
from pytest_llmbench.session.ending import sweep
from pytest_llmbench.session.law import Law, flatten, recipe_differences
from pytest_llmbench.session.record_store import KeptRuns
from pytest_llmbench.session.signing import PytestCommand
from tests.support.recorded import REAL

RECORD = RunRecord.read(REAL)
PLAIN: dict[str, Any] = json.loads(RECORD.recipe.model_dump_json())


def test_every_field_of_a_recipe_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a rule over all fields, so that one that comes later is compared as well."""
    fields = {*flatten(PLAIN), *(name for name in Recipe.model_fields if not isinstance(PLAIN[name], dict))}
    excused = {name for name in fields if name.partition(".")[0] in law.MAY_DIFFER}
    assert len(fields) > 40
    assert {name.partition(".")[0] for name in excused} == law.MAY_DIFFER.keys()
    for name in sorted(fields - excused):
        changed = json.loads(json.dumps(PLAIN))
        part, last = changed, name.split(".")
        for step in last[:-1]:
            part = part[step]
        part[last[-1]] = "another"
        pair = iter((changed, PLAIN))
        monkeypatch.setattr(law, "_with_defaults", lambda _, pair=pair: next(pair))
        assert [*recipe_differences(RECORD.recipe, RECORD.recipe)] == [(name, "another", flatten(PLAIN)[name])]


@pytest.mark.parametrize(("record", "today", "named"), [
    ({"options": {"attention": "math"}}, {}, ["options.attention"]),
    ({"references": []}, {}, []),
    ({"description": "words", "source": "others", "prepare": [], "time_limit": "10:00:00"}, {}, []),
    ({"end": "time_limit", "time_limit": "10:00:00"}, {"end": "time_limit"}, ["time_limit"]),
    ({"deadlines": {"startup_s": 9000.0}}, {}, ["deadlines.startup_s"]),
    ({"deadlines": {"startup_s": None}}, {}, ["deadlines.startup_s"]),
    ({"deadlines": {"startup_s": 9.0}}, {}, []),
    ({"deadlines": {"startup_s": 9.0}}, {"deadlines": {"startup_s": None}}, []),
    ({"data": {"kind": "token_file", "path": "/x"}}, {}, ["data.dtype", "data.kind", "data.path", "data.seed"]),
])  # fmt: skip
def test_what_may_differ_is_little(record: dict[str, Any], today: dict[str, Any], named: list[str]) -> None:
    ran, due = (Recipe.model_validate({**PLAIN, **changes}) for changes in (record, today))
    assert [name for name, *_ in recipe_differences(ran, due)] == named


def test_options_that_were_left_out_are_those_of_the_engine() -> None:
    defaults = flatten(law._with_defaults(RECORD.recipe))
    written = {name.removeprefix("options."): value for name, value in defaults.items() if name.startswith("options.")}
    assert not [*recipe_differences(RECORD.recipe, RECORD.recipe.model_copy(update={"options": written}))]


def test_a_batch_that_grows_with_the_ranks_is_todays_on_the_ranks_of_the_run() -> None:
    grows = {"global_batch_size": None, "gradient_accumulation_steps": 4}
    recipe = Recipe.model_validate({**PLAIN, **grows})
    topology = RECORD.topology
    today = Law(recipes={(recipe.name, recipe.scale): recipe})
    assert today.wrong_work(recipe.on(topology), topology) == ""
    halved = recipe.model_copy(update={"gradient_accumulation_steps": 2}).on(topology)
    assert "global_batch_size: " in today.wrong_work(halved, topology)
    assert "gradient_accumulation_steps: the record has 2, today's" in today.wrong_work(halved, topology)


def test_each_way_to_judge_is_named() -> None:
    ran, topology, name = RECORD.recipe, RECORD.topology, (RECORD.recipe.name, RECORD.recipe.scale)
    today = {name: ran.model_copy(update={"steps": 99})}
    assert Law(recipes=today).wrong_work(ran, topology).startswith("it ran another recipe than today's: steps: ")
    assert Law(recipes=today).note(ran, topology) == ""
    recorded = Law(recipes=today, as_recorded=True)
    assert recorded.wrong_work(ran, topology) == ""
    assert recorded.note(ran, topology).startswith("judged as recorded, by its own recipe: steps: the record has 50, ")
    assert Law().wrong_work(ran, topology) == ""
    unknown = "not compared with a recipe of today: this folder has no recipe opt125m"
    assert Law().notes([RECORD, RECORD]) == [f"2 runs: {unknown}"]
    assert "with a recipe of today: x" in Law(unread="x").note(ran, topology)


def test_what_ran_is_shown() -> None:
    assert RECORD.work == {
        "engine": "torch", "model": "12 layers, hidden size 768, 12 heads, 51196 words",
        "batch": "256 sequences of 2048 tokens, 16 at a time", "precision": "bf16",
        "layout": "tensor 1, pipeline 1, sharding none", "steps": "50 of 50, judged from step 6",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("recipe", "asked", "named"),
    [({}, None, ""), ({}, 1, ""), ({}, 4, "nodes: it ran on 1, and should have run on 4"), ({"nodes": 1}, None, ""),
     ({"nodes": 3}, None, "nodes: it ran on 1, and should have run on 3"), ({"nodes": 3}, 1, "")],
)  # fmt: skip
def test_a_run_was_to_be_on_a_number_of_nodes(recipe: dict[str, Any], asked: int | None, named: str) -> None:
    """A replay asks for a number by --nodes, or by a recipe that is for one; other commands name the difference."""
    due = Recipe.model_validate({**{name: value for name, value in PLAIN.items() if name != "nodes"}, **recipe})
    ran = RECORD.recipe.model_copy(update={"nodes": due.nodes})
    today = {(ran.name, ran.scale): due}
    replay = Law(recipes=today, nodes=lambda recipe: asked or law.published_nodes(recipe))
    assert named in replay.wrong_work(ran, RECORD.topology)
    assert bool(named) == bool(replay.wrong_work(ran, RECORD.topology))
    assert replay.note(ran, RECORD.topology) == ""
    note = "on 1 node; today's recipe opt125m is for 3" if due.nodes == 3 else ""
    assert Law(recipes=today).note(ran, RECORD.topology) == note


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
