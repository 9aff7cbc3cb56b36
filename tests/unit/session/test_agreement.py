"""Every file of a session's folder that has something about a run agrees with its record, or is named."""

import contextlib
import copy
import functools
import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from pytest_llmbench import __version__
from pytest_llmbench.cli.app import app
from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.records import MadeBy, Problem, RunRecord, SessionVerdicts, Verdict, iso, write_model
from pytest_llmbench.session.agreement import UNCHECKED, Agreement
from pytest_llmbench.session.folder import read_events, read_records
from pytest_llmbench.session.journal.journal import JournalEvent
from pytest_llmbench.session.law import Law
from pytest_llmbench.session.live.snapshot import LiveSnapshot, LiveTask
from pytest_llmbench.session.nodes.answers import differences_of_report, judge_check_again
from pytest_llmbench.session.replay import (
    as_replayed,
    differences_of_logs,
    differences_of_record,
    recount,
    runs_of_session,
)

(RECORDED,) = (Path(__file__).parents[2] / "data" / "evidence").glob("2*")
RUN = "runs/tiny"


@pytest.fixture
def session(tmp_path: Path, unigram: None) -> Path:
    """A recorded session, with the files that a session of today has as well."""
    folder = Path(shutil.copytree(RECORDED, tmp_path / RECORDED.name))
    record, checks = RunRecord.read(folder / RUN / "record.json"), read_records(folder, HealthRecord)
    task = LiveTask(
        name="tiny", state="judged", step=24, steps=24, started=record.timings.started, took_s=record.took_s,
        verdict=Verdict.PASS,
    )  # fmt: skip
    others = [
        LiveTask(name=name, about="check", state="judged", started=check.timings.started, verdict=Verdict.PASS)
        for name, check in checks.items()
    ]
    picture = LiveSnapshot(
        session=record.session, host="vm", pid=1, began=1.0, at=2.0, count=3, word="pass", exit_code=0,
        tasks=(task, *others),
    )  # fmt: skip
    rows = [
        {**judgement.model_dump(mode="json"), **facts}
        for one, facts in (
            (record, {"run": "tiny", "hosts": "vm", "run_record": str(record.path), "nodes": 1, "findings": ""}),
            *(
                (
                    check,
                    {
                        "check": name,
                        "family": "host",
                        "slot": 0,
                        "hosts": "vm",
                        "health_record": str(check.path),
                        "run_seconds": round(check.took_s, 3),
                    },
                )
                for name, check in checks.items()
            ),
        )
        for judgement in one.judgements
    ]
    write_model(folder / "live.json", picture)
    write_model(folder / "verdicts.json", SessionVerdicts(session=record.session, tests=tuple(rows)))
    return folder


def objections(session: Path) -> list[str]:
    return Agreement(session).objections(RunRecord.read(session / RUN / "record.json"))


def plain(path: str, change: Callable[[Any], object]) -> Callable[[Path], None]:
    def edit(session: Path) -> None:
        data = json.loads((session / path).read_text())
        change(data)
        (session / path).write_text(json.dumps(data))

    return edit


def journal(keep: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Leave lines of the journal out, or change them; each is written with its checksum."""

    def edit(session: Path) -> None:
        path = session / "journal"
        lines = [json.loads(line.partition(b" ")[2]) for line in path.read_bytes().splitlines()]
        path.write_bytes(b"".join(JournalEvent.frame(json.dumps(line).encode()) for line in lines if keep(line)))

    return edit


def without(event: str, name: str = "") -> Callable[[Path], None]:
    return journal(lambda line: not (line["event"] == event and name in line.get("name", "")))


def changed(event: str, **values: object) -> Callable[[Path], None]:
    return journal(lambda line: line.update(values if line["event"] == event else {}) is None)


def replace_by_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def halve(data: Any) -> None:
    for step in data["steps"]:
        step["seconds"] /= 2


def early(data: Any) -> None:
    """The record and the plan of a run that was ended early, by whoever cut its steps."""
    data["early"] = {"planned": 24, "look": 12, "looks": [6, 9, 12], "done": 12, "alpha": 0.0015, "decided": ["fast"]}
    data["steps"] = data["steps"][:12]


def cut_off(data: Any) -> None:
    """The record of a run that failed before its limit, which was to end it."""
    data["recipe"]["end"], data["cut_off"] = "time_limit", "ended at its time limit of 00:05:00"


def struck(session: Path) -> None:
    (session / RUN / "simulated").mkdir()
    (session / RUN / "simulated" / "rank-00001").write_text("nan@5\n")


def sign(session: Path, path: Path, record: Any) -> Any:
    """Have the record say who made it, as records of today do."""
    (began,) = (event for event in read_events(session) if event.event == "began")
    times = {name: iso(at) for name, at in record.timings}
    maker = MadeBy(
        llmbench_version=__version__, command=began.command, directory="/site", user="u", host=began.host,
        reproduce=f"cd /site && {shlex.join(['pytest', *began.command])}", **times,
    )  # fmt: skip
    record = record.model_copy(update={"made_by": maker})
    write_model(path, record)
    return record


def asked_for_a_fault(session: Path) -> None:
    changed("began", command=["--llmbench-simulate=tcp"])(session)
    sign(session, session / RECORD, RunRecord.read(session / RECORD))


def attempt(*, before: bool, **changes: Any) -> Callable[[Path], None]:
    """Leave an earlier attempt at the run, which failed before it began, or one of another process of the session."""

    def edit(session: Path) -> None:
        record = json.loads((session / RECORD).read_text())
        at = record["timings"]["submitted"] - (1.0 if before else 100.0)
        changes["problem"] = {"kind": "job_node_fail", "message": "n1 failed"}
        record.update(changes, metrics={}, judgements=[], timings={**record["timings"], "ended": at})
        (session / "superseded" / "tiny.1").mkdir(parents=True)
        (session / "superseded" / "tiny.1" / "record.json").write_text(json.dumps(record))

    return edit


RECORD, TASK, JOB = (f"{RUN}/{name}.json" for name in ("record", "task", "job"))
# A change of a JSON file, and the words that name it.
CHANGES: dict[str, tuple[str, Callable[[Any], object], str]] = {
    "a number": (RECORD, lambda d: d["metrics"]["throughput"].update(value=9e9), r"metrics\.throughput\.value"),
    "a fact": (RECORD, lambda d: d.update(system="x"), "journal: the record of this run was another one"),
    "a system": (RECORD, lambda d: d.update(system="x"), "system.json: its system is here, in the record x"),
    "a judged number": (RECORD,
                        lambda d: d["judgements"][1].update(value=9e9, measured="9000000000.0 words/s", high=9e9),
                        r"tiny-fast\]: it judged 9000000000.0 words/s, and throughput is 27822"),
    "a lower bound": (RECORD, lambda d: d["judgements"][1].update(at_least=1.0), r"at_least: 1\.0, but .*threshold is"),
    "the words of a number": (RECORD, lambda d: d["judgements"][2].update(measured="9 nat"), "measured is 9 nat"),
    "fewer steps": (RECORD, lambda d: d["recipe"].update(steps=20), "session.json: .*steps: 24, in the record 20"),
    "an early verdict": (RECORD, early, "session.json: no early verdict was asked for"),
    "an early end": (RECORD, early, "enough.json: it is missing"),
    "a look": (RECORD, early, "early: a look at step 12 after"),
    "half the time": (RECORD, halve, "rank_info: the steps of the slowest rank add up to"),
    "steps of a task": (TASK, lambda d: d["config"].update(steps=40), "task.json: steps: it has 40, the record 24"),
    "a model": (TASK, lambda d: d["config"]["model"].update(layers=2), r"task.json: model\.layers: it has 2"),
    "ranks": (TASK, lambda d: d.update(ranks_per_node=8), "the task of its launch: ranks: it has 8"),
    "a job": (JOB, lambda d: d.update(job_id="7"), "job.json: job_id: it has 7, the record 22359"),
    "a launch": (JOB, lambda d: d.update(submitted=9.0), "job.json: submitted: it has 9.0"),
    "a token": (JOB, lambda d: d.update(token="x"), "job.json: token: it has x"),
    "no job": (JOB, lambda d: d.pop("job_id"), "a file of its launch cannot be read: "),
    "a live time": ("live.json", lambda d: d["tasks"][0].update(took_s=1.5), "live.json: took_s: it has 1.5"),
    "a live step": ("live.json", lambda d: d["tasks"][0].update(step=12), "live.json: step: it has 12"),
    "a live verdict": ("live.json", lambda d: d["tasks"][0].update(verdict="FAIL"), "live.json: verdict: it has FAIL"),
    "a row": ("verdicts.json", lambda d: d["tests"][1].update(value=9e9), r"verdicts.json: .*: value: it has 9"),
    "logs elsewhere": (RECORD, lambda d: d.update(replayed="/x"), "replayed: /x, but cluster is local"),
    "logs here": (RECORD, lambda d: d.update(replayed="/x"),
                  "session.json: its logs are None, and the record has .* /x"),
    "nothing": (RECORD, lambda d: d.update(steps=[], metrics={}), "problem: None, but the run has no steps"),
    "no token": (RECORD, lambda d: d.pop("run_token"), "run_token: it has llmbench:.*, the record None"),
    "a fault": (TASK, lambda d: d.update(simulate={"name": "nan", "step": 5}), "it has nan@5, the record None"),
    "no fault": (RECORD, lambda d: d.update(simulated="die@5"), "simulated: it has None, the record die@5"),
    "a limit": (RECORD, lambda d: d.update(cut_off="ended at its time limit of 00:05:00"), "cut_off: .*end is steps"),
    "a short limit": (RECORD, cut_off, r"cut_off: ended .* of 00:05:00, but .* is time_limit, and it took 3\.06"),
    "no launch": (RECORD, lambda d: d.update(superseded=["job_lost: x"] * 2),
                  "journal: it has 1 launches of this run, and the record 3"),
    "a row's fault": ("verdicts.json", lambda d: d["tests"][0].update(simulated="nan@5"),
                      "it has nan@5, the record None"),
    "a maker": ("verdicts.json", lambda d: d["facts"].update(llmbench_version="1"),
                "version: it has 1, the record None"),
    "a verdict twice": (RECORD, lambda d: d["judgements"].append(d["judgements"][0]), "judgements: .*learns. has 2"),
    "a plan": ("session.json", lambda d: d["runs"][0].update(key="x"), "session.json: it does not have this run"),
}  # fmt: skip
EDITS = {
    **{name: (plain(path, change), words) for name, (path, change, words) in CHANGES.items()},
    "no beginning": (without("began"), "journal: it lacks the line `began`"),
    "no launching": (without("submitting"), "journal: it lacks the line `submitting`"),
    "no start": (without("submitted"), "journal: it lacks the line `submitted`"),
    "no end": (without("finished", "tiny"), "journal: it lacks the line `finished`"),
    "no verdict": (without("judged", "tiny-fast"), r"journal: it has no verdict for .*tiny-fast\], the record PASS"),
    "another verdict": (changed("judged", verdict="FAIL"), "journal: it has FAIL for .*fast"),
    "another time": (changed("finished", at=1.0), "journal: it was finished at Unix time 1, by its record at 17"),
    "damage": (lambda session: (session / "journal").write_bytes(b"x\n"), "journal: it is damaged"),
    "a FIFO": (lambda session: replace_by_fifo(session / "journal"), "journal: it is damaged"),
    "a strike": (struck, "simulated: it has nan@5, the record None"),
    "an attempt": (attempt(before=True), "superseded: 22359: .* not in superseded: job_node_fail: n1 failed"),
    "a lost node": (attempt(before=True, lost_nodes=["n1"]), "this attempt lost n1, which is not in lost_nodes"),
    "a node to avoid": (attempt(before=True, lost_nodes=["n1"]),
                        "n1 was lost under tiny before, and is not in avoided_nodes"),
    "a fault asked": (asked_for_a_fault, "made_by.command: .*--llmbench-simulate=tcp, but simulated is None"),
    "a check less": (
        plain("session.json", lambda plan: plan.update(checks=["memory"])),
        "journal: it has disk, which session.json lacks",
    ),
    "a test less": (
        plain("session.json", lambda plan: plan["tests"].pop()),
        r"journal: it has test_user.py::test_own\[tiny\], which session.json lacks",
    ),
    "nobody": (changed("began", session=RECORDED.name), "journal: it says who began .* and the record not who made it"),
    "3 GiB": (lambda session: os.truncate(session / "journal", 3 << 30), "journal: it is damaged"),
}  # fmt: skip


def test_an_honest_session_agrees(session: Path) -> None:
    assert objections(session) == []
    (session / "journal").unlink()  # as in a folder of records alone
    assert objections(session) == []


def test_each_process_of_a_session_knows_its_own_attempts(session: Path) -> None:
    attempt(before=False, lost_nodes=["n1"])(session)
    assert objections(session) == []


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values of a document; of a list, the middle one stands for all."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from leaves(part, (*path, key))
    elif isinstance(value, list):
        for number in [len(value) // 2][: len(value)]:
            yield from leaves(value[number], (*path, number))
    elif value is not None:
        yield path


def changed_leaf(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else value * 1.07 + 0.001 if isinstance(value, float) else f"{value}x"


# Values for fields that are empty in the record.
ADDED = {
    "simulated": "die@5", "cut_off": "Slurm ended it at its time limit", "replayed": "/x", "as_recorded": "steps",
    "superseded": ["job_lost: x"], "failed_launches": ["x", "y"], "provenance": {"torch": "2.9"}, "totals": {"x": 1.0},
    "unreadable": ["output.log:1: x"], "findings": ["x"], "transport": ["x"], "unconfirmed": ["x"], "settings": "x",
    "problem": {"kind": "hang", "message": "x"},
}  # fmt: skip


def edits_of(whole: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each leaf changed, each field left out, and each that is empty with a value; a recipe is compared as one."""
    for leaf in leaves({name: value for name, value in whole.items() if name != "recipe"}):
        edited = copy.deepcopy(whole)
        parent = functools.reduce(lambda part, key: part[key], leaf[:-1], edited)
        parent[leaf[-1]] = changed_leaf(parent[leaf[-1]])
        yield ".".join(map(str, leaf)), edited
    for name, value in whole.items():
        if value not in (None, 0, 1, [], {}):
            yield f"{name} left out", {key: kept for key, kept in whole.items() if key != name}
    report = {name: value for name, value in whole.get("report", {}).items() if value}
    for name in report:
        yield f"report.{name} left out", {**whole, "report": {key: kept for key, kept in report.items() if key != name}}
    yield from ((f"{name} added", {**whole, name: value}) for name, value in ADDED.items() if not whole.get(name))


@pytest.mark.parametrize(("kind", "folder"), [(RunRecord, RUN), (HealthRecord, "checks/memory")])
def test_each_edit_of_a_record_is_named(session: Path, kind: Any, folder: str) -> None:
    """Even if the record's digest in the journal was computed again."""
    changed("began", session=session.name)(session)  # the recorded journal is of before it had this key
    changed("finished", record="")(session)
    plain("verdicts.json", lambda data: data["facts"].update(llmbench_version=__version__))(session)
    path, unseen, agreement = session / folder / "record.json", set[str](), Agreement(session)
    record = kind.read(path)
    assert agreement.kept is not None
    again: Any
    differences: Callable[..., list[str]]
    if kind is HealthRecord:
        again, differences = judge_check_again(record, agreement), differences_of_report
    else:
        again = recount(record.recipe, as_replayed(record, path.parent), agreement.kept.system)
        record, differences = record.model_copy(update=dict(again.outcome)), differences_of_record
    record = sign(session, path, record)
    assert [*agreement.objections(record), *differences(record, again)] == []
    for name, edited in edits_of(json.loads(path.read_text())):
        with contextlib.suppress(ValidationError):
            record = kind.model_validate_json(json.dumps(edited))
            if not agreement.objections(record) and not differences(record, again):
                unseen.add(name)
    assert unseen <= UNCHECKED.keys(), unseen - UNCHECKED.keys()


def test_a_run_with_a_problem_is_compared_with_its_logs(session: Path) -> None:
    """Unless its ranks have written on, as those on a lost node do."""
    record, agreement = RunRecord.read(session / RECORD), Agreement(session)
    hang = {"problem": Problem(kind="hang", message="no step"), "metrics": {}, "steady": None, "judgements": ()}
    broken = record.model_copy(update=hang)
    slow = record.steps[11].model_copy(update={"seconds": 9.0})
    other = broken.model_copy(update={"steps": (*record.steps[:11], slow, *record.steps[12:])})
    assert differences_of_logs(agreement, broken) == []
    assert "steps[12].seconds: the record says 9.0" in differences_of_logs(agreement, other)[0]
    fewer = broken.model_copy(update={"steps": other.steps[:20]})
    assert differences_of_logs(agreement, fewer) == []


def test_of_a_session_that_goes_on_lines_may_be_missing(session: Path) -> None:
    for edit in (without("ended"), without("judged"), without("finished")):
        edit(session)
        assert objections(session) == []


@pytest.mark.parametrize("edit", EDITS)
def test_a_file_that_disagrees_is_named(session: Path, edit: str) -> None:
    change, words = EDITS[edit]
    change(session)
    assert re.search(words, "\n".join(objections(session))), objections(session)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Enter a buyer's folder with the recipe of the session, but for changes."""

    def enter(**changes: Any) -> None:
        recipe = json.loads((RECORDED / RECORD).read_text())["recipe"] | changes
        written = {key: value for key, value in recipe.items() if key not in {"name", "scale"} and value is not None}
        recipes = {"tiny": written}
        (tmp_path / "recipes").mkdir(exist_ok=True)
        (tmp_path / "recipes" / "tiny.yaml").write_text(json.dumps({"family": "tiny", "recipes": recipes}))
        (tmp_path / "pytest.ini").write_text("[pytest]\nllmbench_recipes = recipes\n")
        monkeypatch.chdir(tmp_path)

    return enter


def test_the_recipe_of_the_folder_of_a_command_is_the_law(session: Path, site: Callable[..., None]) -> None:
    """Each command names both values, or accepts the run as recorded with a word about it."""
    shutil.copytree(session, session.with_name("other"))
    site(steps=40)
    steps = "steps: the record has 24, today's recipe tiny 40"
    for more, words in (
        ((), f"wrong_work: it ran another recipe than today's: {steps}"),
        (("--as-recorded",), f"judged as recorded, by its own recipe: {steps}"),
    ):
        for command in (("report", "--format", "csv"), ("compare", "other"), ("history", "import")):
            done = CliRunner().invoke(app, (*command, str(session), *more))
            said = f"{done.output}{done.exception}"
            assert words in said
            assert bool(more) != ("wrong_work" in said)
            assert more or done.exit_code == 1


def other_step_logs(session: Path) -> None:
    """Step logs in which one step is longer, by less than the clocks of its ranks would contradict."""
    for path in (session / RUN / "steps").glob("rank-*"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            if line.get("step") == 12:
                line["seconds"] *= 1.001
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


@pytest.mark.parametrize(("edit", "named"), [
    (EDITS["a number"][0], "metrics.throughput.value: "), (other_step_logs, "steps[12].seconds: the record says "),
])  # fmt: skip
def test_all_who_build_on_it_name_it(session: Path, tmp_path: Path, edit: Callable[[Path], None], named: str) -> None:
    """`--replay`, `report` in each form, `compare` and `history import`: none shows the number as if it were sound."""
    edit(session)
    (run,) = runs_of_session(session, Law(as_recorded=True))
    assert run.replayed is not None
    assert named in run.replayed.disagrees
    page = tmp_path / "page.html"
    for words, code in (
        (("report", str(session), "--output", str(page)), 1),
        (("report", str(session), "--format", "csv", "--output", str(tmp_path / "csv")), None),
        (("compare", str(session), str(RECORDED)), None),
        (("history", "import", str(session), "--history", str(tmp_path / "h.db")), 1),
    ):
        done = CliRunner().invoke(app, words)
        assert named in f"{done.output}{done.exception}"
        assert done.exit_code == (code or 1)
    assert "9,000,000,000" not in page.read_text().replace("metrics.throughput.value: throughput is 9,000,000,000", "")
