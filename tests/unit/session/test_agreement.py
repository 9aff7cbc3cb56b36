"""Every file of a session's folder that has something about a run agrees with its record, or is named."""

import contextlib
import copy
import functools
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from pytest_llmbench.cli.app import app
from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.records import RunRecord, SessionVerdicts, Verdict, write_model
from pytest_llmbench.session.agreement import UNCHECKED, Agreement
from pytest_llmbench.session.folder import read_records
from pytest_llmbench.session.journal.journal import JournalEvent
from pytest_llmbench.session.law import Law
from pytest_llmbench.session.live.snapshot import LiveSnapshot, LiveTask
from pytest_llmbench.session.nodes.answers import differences_of_report, judge_check_again
from pytest_llmbench.session.replay import as_replayed, differences_of_record, recount, runs_of_session

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
                (check, {"check": name, "family": "host", "slot": 0, "hosts": "vm", "health_record": str(check.path)})
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


RECORD, TASK, JOB = (f"{RUN}/{name}.json" for name in ("record", "task", "job"))
# A change of a JSON file, and the words that name it.
CHANGES: dict[str, tuple[str, Callable[[Any], object], str]] = {
    "a number": (RECORD, lambda d: d["metrics"]["throughput"].update(value=9e9), r"metrics\.throughput\.value"),
    "a fact": (RECORD, lambda d: d.update(system="x"), "journal: the record of this run was another one"),
    "a system": (RECORD, lambda d: d.update(system="x"), "system.json: its system is here, in the record x"),
    "a judged number": (
        RECORD,
        lambda d: d["judgements"][1].update(value=9e9, measured="9000000000.0 words/s", high=9e9),
        r"tiny-fast\]: it judged 9000000000.0 words/s, and throughput is 27822",
    ),
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
    "a verdict twice": (RECORD, lambda d: d["judgements"].append(d["judgements"][0]), "judgements: .*learns. has 2"),
    "a plan": ("session.json", lambda d: d["runs"][0].update(key="x"), "session.json: it does not have this run"),
}
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
    "3 GiB": (lambda session: os.truncate(session / "journal", 3 << 30), "journal: it is damaged"),
}


def test_an_honest_session_agrees(session: Path) -> None:
    assert objections(session) == []
    (session / "journal").unlink()  # as in a folder of records alone
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


@pytest.mark.parametrize(("kind", "folder"), [(RunRecord, RUN), (HealthRecord, "checks/memory")])
def test_each_leaf_of_a_record_is_compared(session: Path, kind: Any, folder: str) -> None:
    """An edited value is named, even if the record's digest in the journal was computed again."""
    changed("began", session=session.name)(session)  # the recorded journal is of before it had this key
    path, unseen, agreement = session / folder / "record.json", set[str](), Agreement(session)
    whole, record = json.loads(path.read_text()), kind.read(path)
    assert agreement.kept is not None
    again: Any
    differences: Callable[..., list[str]]
    if kind is HealthRecord:
        again, differences = judge_check_again(record, agreement), differences_of_report
    else:
        again = recount(record.recipe, as_replayed(record, path.parent), agreement.kept.system)
        differences = differences_of_record
    assert [*agreement.objections(record), *differences(record, again)] == []
    for leaf in leaves(whole):
        if leaf[0] == "recipe":  # one comparison with the plan
            continue
        edited = copy.deepcopy(whole)
        parent = functools.reduce(lambda part, key: part[key], leaf[:-1], edited)
        parent[leaf[-1]] = changed_leaf(parent[leaf[-1]])
        with contextlib.suppress(ValidationError):
            record = kind.model_validate_json(json.dumps(edited))
            if not agreement.objections(record) and not differences(record, again):
                unseen.add(".".join(map(str, leaf)))
    assert unseen <= UNCHECKED.keys()


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
