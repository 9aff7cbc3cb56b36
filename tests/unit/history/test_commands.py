"""`llmbench history` and `llmbench compare`, as one types them."""

import csv
import datetime as dt
import io
import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.history.simulated import REAL, Fleet, keep
from pytest_llmbench.cli import history
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.history.database import open_history

COMPARE = typer.Typer()
COMPARE.command()(history.compare)


def told(app: typer.Typer, *words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, [*words], env={"COLUMNS": "300"})
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A history of 30 days, since the 20th of which one of two recipes is 4 % slower."""
    path = tmp_path_factory.mktemp("place") / "history.db"
    opened = open_history(path)
    fleet = Fleet("x", 2, steps=40)
    for day in range(30):
        keep(opened, fleet.session(day, {fleet.recipes[0]: 0.04} if day >= 20 else None))
    return str(path)


def test_sessions_are_imported_listed_and_shown(tmp_path: Path) -> None:
    """A damaged record ends the import with 1, after everything else was imported."""
    place = str(tmp_path / "h.db")
    folder = REAL.parents[2]
    assert "1 new record" in told(
        history.app, "import", "--as-recorded", str(folder), "--history", place, "--tag", "first"
    )
    (tmp_path / "bad" / "runs" / "x").mkdir(parents=True)
    (tmp_path / "bad" / "runs" / "x" / "record.json").write_text("{")
    output = told(
        history.app, "import", "--as-recorded", str(folder), str(tmp_path / "bad"), "--history", place, code=1
    )
    assert "bad/runs/x/record.json" in output
    assert "1 known already, 1 refused" in output
    (session,) = json.loads(told(history.app, "show", "--history", place, "--json"))
    assert session["verdicts"] == {"PASS": 2, "SKIP": 1}
    assert "tags first, second" in told(history.app, "show", session["id"][:10], "--tag", "second", "--history", place)
    assert "first second" in told(history.app, "show", "--history", place)
    shown = json.loads(told(history.app, "show", session["id"], "--history", place, "--json"))
    assert shown["records"][0]["metrics"]["throughput"]["better"] == "higher"
    assert "throughput 456,479 words/s" in told(history.app, "show", session["id"], "--history", place)


def test_a_record_without_a_verdict_is_named(tmp_path: Path) -> None:
    copied = tmp_path / "session" / "runs" / "opt125m" / "record.json"
    copied.parent.mkdir(parents=True)
    copied.write_text(json.dumps({**json.loads(REAL.read_text(encoding="utf-8")), "judgements": []}), encoding="utf-8")
    output = told(
        history.app, "import", "--as-recorded", str(tmp_path / "session"), "--history", str(tmp_path / "h.db")
    )
    assert f"{copied}: imported without a verdict: no test judged this run" in output
    assert "1 new record, 0 known already, 0 refused" in output


def test_a_session_is_found_by_the_name_of_its_folder(tmp_path: Path) -> None:
    copied = tmp_path / "nightly" / "runs" / "opt125m" / "record.json"
    copied.parent.mkdir(parents=True)
    copied.write_bytes(REAL.read_bytes())
    place = ("--history", str(tmp_path / "h.db"))
    told(history.app, "import", "--as-recorded", str(tmp_path / "nightly"), *place)
    assert json.loads(told(history.app, "show", "nightly", "--json", *place))["id"] != "nightly"
    assert "unknown session 'night%'" in str(CliRunner().invoke(history.app, ["show", "night%", *place]).exception)


def test_a_series_and_its_changes_are_told(place: str) -> None:
    rows = [*csv.DictReader(io.StringIO(told(history.app, "series", "x-00", "step_time", "--csv", "--history", place)))]
    assert len(rows) == 30
    assert float(rows[25]["value"]) == pytest.approx(1.04 * float(rows[5]["value"]), rel=0.02)
    last = json.loads(told(history.app, "series", "x-00", "step_time", "--json", "--last", "3", "--history", place))
    assert [f"{point['value']:.9g}" for point in last] == [f"{float(row['value']):.9g}" for row in rows[-3:]]
    for metric in ("step_time", "throughput"):
        found = json.loads(told(history.app, "series", "x-00", metric, "--changes=.001", "--json", "--history", place))
        (change,) = found["changes"]
        assert (change["position"], change["session"], change["worse"]) == (20, "session-x-0020", True)
    output = told(history.app, "series", "x-01", "throughput", "--changes", "0.001", "--history", place)
    assert "0 changes" in output


def test_the_csv_of_one_series_is_what_otava_reads(place: str) -> None:
    """Times in ISO 8601, as its importer parses them, and the rows of one series alone."""
    output = told(history.app, "series", "x-00", "throughput", "--csv", "--series", "1", "--history", place)
    rows = [*csv.DictReader(io.StringIO(output))]
    assert len(rows) == 30
    assert {row["series"] for row in rows} == {"1"}
    times = [dt.datetime.fromisoformat(row["time"]) for row in rows]
    assert times == sorted(times)
    assert all(float(row["value"]) > 0.0 and row["session"] and row["unit"] == "words/s" for row in rows)
    result = CliRunner().invoke(history.app, ["series", "x-00", "throughput", "--series", "99", "--history", place])
    assert "recipe x-00: unknown series '99'" in str(result.exception)


def test_two_sessions_are_compared(place: str) -> None:
    """One recipe became slower: the command ends with 1; with 0 where nothing did."""
    arguments = ("--history", place, "--json")
    lines = json.loads(told(COMPARE, "session-x-0019", "session-x-0021", *arguments, code=1))
    verdicts = {(line["recipe"], line["metric"]): line["verdict"] for line in lines}
    assert verdicts["x-00", "throughput"] == verdicts["x-00", "step_time"] == "FAIL"
    assert verdicts["x-01", "throughput"] == verdicts["x-01", "step_time"] == "PASS"
    assert "PASS" in told(COMPARE, "session-x-0018", "session-x-0019", "--history", place)


def test_nothing_compared_is_no_success(place: str) -> None:
    """Sessions without a common recipe end with 10, and say which recipe each lacks."""
    opened = open_history(place)
    keep(opened, Fleet("y", 1).session(40))
    output = told(COMPARE, "session-x-0019", "session-y-0040", "--history", place, code=10)
    assert "the later session has no run of it" in output
    assert "the earlier session has no run of it" in output
    assert "nothing was compared" in output


def test_a_recipe_whose_numbers_have_no_interval_is_no_success(place: str) -> None:
    """The other recipe passes."""
    opened, fleet = open_history(place), Fleet("z", 2)
    for day in (1, 2):
        records = fleet.session(day)
        metrics = {name: each.model_copy(update={"low": None}) for name, each in records["z-01"].metrics.items()}
        keep(opened, records | {"z-01": records["z-01"].model_copy(update={"metrics": metrics})})
    output = told(COMPARE, "session-z-0001", "session-z-0002", "--history", place, code=10)
    assert "PASS" in output
    assert "nothing was compared of z-01" in output


@pytest.mark.parametrize(
    ("words", "message"),
    [(("show", "nothing"), "unknown session 'nothing'"), (("series", "x-0", "throughput"), "did you mean 'x-0"),
     (("series", "x-00", "speed"), "legal: step_time, throughput")],
)  # fmt: skip
def test_wrong_words_are_said(place: str, words: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(history.app, [*words, "--history", place])
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)


def test_a_misspelt_file_is_no_empty_history(tmp_path: Path) -> None:
    result = CliRunner().invoke(history.app, ["show", "--history", str(tmp_path / "no.db")])
    assert "there is no history" in str(result.exception)
    assert not [*tmp_path.iterdir()]
