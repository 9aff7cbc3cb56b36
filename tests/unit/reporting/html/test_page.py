"""The HTML report: every declared test has its verdict on it, whatever is missing, damaged or hostile."""

import json
import os
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.history.simulated import Fleet, keep
from pytest_llmbench.cli.sessions import report_session
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.record.health import Reading, Report
from pytest_llmbench.core.record.records import Judgement, RunRecord, Verdict
from pytest_llmbench.core.wire import layout
from pytest_llmbench.history.database import open_history
from pytest_llmbench.reporting.html import sections
from pytest_llmbench.reporting.html.drawing import frame_of
from pytest_llmbench.reporting.html.figures import check_figures, step_figures
from pytest_llmbench.reporting.html.trend import trend_figures
from tests.support.recorded import (
    broken_run,
    check_records,
    run_record,
    write_every_kind,
    write_large,
    write_page,
    write_session,
    write_verdicts,
)

HOSTILE = "</script><script>alert(1)</script>--><img src=x onerror=alert(2)>'\"&\x1b[31m\x00\u202e"


class Page(HTMLParser):
    """What a page consists of.

    Attributes:
        tags: name and attributes of each element.
        rows: the kinds of the rows of verdicts.
        text: all of it but scripts and styles.
        data: numbers of heat maps.
        comments: parts that are laid away.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[str] = []
        self.text, self.data, self.comments = "", [dict[str, Any]()][:0], [""][:0]
        self._in = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        self.tags.append((tag, told))
        if tag == "tr" and "data-k" in told:
            self.rows.append(str(told["data-k"]))
        self._in = tag if tag in {"script", "style"} else ""
        if told.get("data-heat"):
            self.data.append(json.loads(str(told["data-heat"])))

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002 - as HTMLParser calls it
        self._in = ""

    def handle_data(self, data: str) -> None:
        if not self._in:
            self.text += data

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [told for name, told in self.tags if name == tag]


@pytest.fixture
def session(tmp_path: Path) -> Path:
    """A session of four runs and six checks, with a verdict of every kind."""
    folder = tmp_path / "20261124-101500-abc123"
    write_every_kind(folder)
    return folder


def declared(session: Path) -> int:
    return len(json.loads((session / "session.json").read_text())["tests"])


def test_each_declared_test_and_each_incomplete_clause_is_a_row(session: Path) -> None:
    """The number of verdicts on the page is that of the session, and the worst come first."""
    page = Page(write_page(session))
    assert len(page.rows) == declared(session) + 1
    assert {kind: page.rows.count(kind) for kind in dict.fromkeys(page.rows)} == {
        "fail": 3, "error": 2, "incomplete": 1, "unbounded": 8, "skip": 8, "pass": 18,
    }  # fmt: skip
    assert "3 FAIL, 2 ERROR, 1 INCOMPLETE among 40 verdicts" in page.text
    assert "without a threshold" in page.text


def test_the_page_is_one_file_for_everybody(session: Path) -> None:
    path = write_page(session)
    page = Page(path)
    (policy,) = [told["content"] for told in page.all("meta") if told.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-inline" not in policy.split("style-src")[0]
    assert not [told for _, told in page.tags if "src" in told]
    assert page.all("html")[0]["lang"] == "en"
    assert [told["name"] for told in page.all("meta") if told.get("name") == "viewport"] == ["viewport"]
    assert {"header", "nav", "main", "footer"} <= {tag for tag, _ in page.tags}
    assert len(page.all("caption")) == len(page.all("table"))
    assert all(told.get("scope") in {"row", "col"} for told in page.all("th"))
    named = {told.get("id") for _, told in page.tags}
    plots = [told for told in page.all("div") if str(told.get("class")).startswith("plot")]
    assert plots
    assert all(told["role"] == "img" and told["aria-describedby"] in named for told in plots)
    links = {str(told["href"]) for told in page.all("a")}
    assert {link[1:] for link in links if link.startswith("#")} <= named
    assert "./runs/slow/record.json" in links
    assert all((session / link).exists() for link in links if not link.startswith("#"))
    assert {len(heat["y"]) for heat in page.data} == {len(heat["z"]) for heat in page.data}
    assert [told for told in page.all("path") if told.get("class") == "heat"]
    assert path.stat().st_mode & 0o077 == 0


def test_a_problem_is_said_once_in_its_run(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    dead = broken_run(folder, "dead", "1 line could not be read, first a.jsonl:7: torn")
    write_session(folder, [dead.model_copy(update={"unreadable": ("a.jsonl:7: torn",)})], [])
    assert Page(write_page(folder)).text.count("a.jsonl:7: torn") == 3  # above all, in the table, in the run


def test_a_figure_says_its_numbers(session: Path) -> None:
    """Warm-up, pause, interval and threshold are in words below it, and in its data."""
    page = Page(write_page(session))
    assert "judged from step 6 on" in page.text
    assert "1 step stand out as pauses: 31" in page.text
    assert "threshold: at most 1.165 s, from throughput ≥ 450,000 words/s" in page.text
    assert "reference nccl_8gib: busbw_8GiB ≥ 380 GB/s" in page.text
    assert "28 pairs of 8 nodes" in page.text
    assert "slowed down by heat or power brake: rank 5" in page.text
    drawn = {str(told.get("class")) for tag, told in page.tags if tag in {"path", "rect"}}
    assert {"band", "edge", "level bad", "level mean", "curve line", "dots second"} <= drawn


def test_the_figure_has_the_interval_of_the_verdict(tmp_path: Path) -> None:
    """Without a verdict on the throughput, it has that of further steps of the run."""
    run = run_record(tmp_path, "opt125m", 1)
    judged, *_ = run.judgements
    wider = judged.model_copy(update={"unit": "words/s", "low": 440_000.0, "high": 470_000.0})
    shown = ((wider, "between 440,000 and 470,000 words/s by the verdict"), (judged, "in further steps"))
    for judgement, words in shown:
        _, throughput, *_ = step_figures(run.model_copy(update={"judgements": (judgement,)}), 1000)
        assert words in throughput.caption


def test_numbers_beyond_every_axis_are_a_figure_or_none() -> None:
    """A damaged record may have them."""
    run = run_record(Path("s"), "opt125m", 1)
    for change in ({"seconds": 1e-320}, {"loss": -1.7e308}):
        first, *rest, last = run.steps
        steps = (first.model_copy(update=change), *rest, last.model_copy(update={"loss": 1.7e308}))
        assert len([frame_of(figure) for figure in step_figures(run.model_copy(update={"steps": steps}), 1000)]) == 3


def test_a_pipe_among_replayed_logs_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(path := tmp_path / "rank-0.log")
    assert "it is not a regular file" in sections.ShownTexts([]).excerpt(tmp_path, path, 100).note


def test_a_damaged_interval_is_left_out(session: Path) -> None:
    path, rows = session / layout.VERDICTS, Page(write_page(session)).rows
    verdicts = json.loads(path.read_text())
    verdicts["tests"][0] |= {"low": "x", "high": 1.0}
    path.write_text(json.dumps(verdicts))
    assert Page(write_page(session)).rows == rows


def hostile(record: RunRecord) -> RunRecord:
    judged = [each.model_copy(update={"test": f"t.py::{HOSTILE}", "reason": HOSTILE, "verdict": Verdict.FAIL})
              for each in record.judgements[:1]]  # fmt: skip
    return record.model_copy(update={
        "judgements": tuple(judged), "hosts": (HOSTILE,), "device": HOSTILE, "versions": {HOSTILE: HOSTILE},
        "findings": (HOSTILE,), "command": HOSTILE, "unreadable": (HOSTILE,), "provenance": {HOSTILE: HOSTILE},
    })  # fmt: skip


def test_foreign_text_is_text(tmp_path: Path) -> None:
    """Names, reasons and logs that look like markup make no element, and no control character reaches the page."""
    folder = tmp_path / "s"
    runs, checks = [hostile(run_record(folder, "bad", 0))], check_records(folder)
    pairs = checks[1].report
    named = [each.model_copy(update={"subject": f"{HOSTILE}{n} - <b>"}) for n, each in enumerate(pairs.readings)]
    checks[1] = checks[1].model_copy(update={"report": pairs.model_copy(update={"readings": tuple(named)})})
    write_session(folder, runs, checks)
    log = folder / "runs" / "bad" / "logs" / "output.log"
    log.parent.mkdir(parents=True)
    log.write_text(f"HF_TOKEN=hf_{'a1' * 20} {HOSTILE}\n")
    path = write_page(folder)
    page, text = Page(path), path.read_text(encoding="utf-8")
    assert "alert(1)" in page.text
    assert not page.all("img")
    assert len([told for told in page.all("script") if not told]) == 1
    assert not [told for _, told in page.tags if any(name.startswith("on") for name in told)]
    assert not {"\x1b", "\x00", "\u202e"} & set(text)
    assert "a1a1a1" not in text
    assert any(HOSTILE in name for heat in page.data for name in heat["x"])


@pytest.mark.parametrize("damage", ["cut", "gone", "of another run"])
def test_a_record_that_cannot_be_read_is_told(session: Path, damage: str) -> None:
    record, whole = session / "runs" / "slow" / "record.json", declared(session) + 1
    if damage == "cut":
        record.write_bytes(record.read_bytes()[:999])
    elif damage == "gone":
        record.unlink()
    else:
        record.write_bytes((session / "runs" / "good" / "record.json").read_bytes())
    page = Page(write_page(session))
    assert len(page.rows) == whole
    assert "Missing or damaged" in page.text
    assert "The record cannot be shown" in page.text
    (section,) = [told for told in page.all("details") if told.get("id") == "run-slow"]
    assert section["data-k"] == "fail"


def test_without_the_file_of_verdicts_no_test_is_lost(session: Path) -> None:
    """Verdicts come from the records, and a declared test that none of them has is shown as without one."""
    (session / "verdicts.json").write_text("{")
    (session / "runs" / "dead" / "record.json").unlink()
    page = Page(write_page(session))
    assert len(page.rows) == declared(session)
    assert page.rows.count("missing") == 1
    assert page.rows.count("unbounded") == 8
    assert "no verdict is on record" in page.text


def test_a_verdict_that_contradicts_its_record_is_told(session: Path) -> None:
    run = RunRecord.read(session / "runs" / "slow" / "record.json")
    passed: list[Judgement] = [each.model_copy(update={"verdict": Verdict.PASS}) for each in run.judgements]
    assert len(write_verdicts(session, [run.model_copy(update={"judgements": tuple(passed)})], []).tests) == 2
    page = Page(write_page(session))
    assert "but its record says FAIL" in page.text
    assert len(page.rows) == declared(session)


def test_a_check_that_lost_its_mark_of_no_bound_is_told(session: Path) -> None:
    path = session / layout.VERDICTS
    path.write_text(path.read_text().replace('"no bound"', '"bounded"'))
    page = Page(write_page(session))
    assert page.rows.count("pass") == 26
    assert page.text.count("but its record says PASS, no bound") == 8


def test_the_trend_has_earlier_sessions_of_the_history(tmp_path: Path) -> None:
    """The figure shows earlier sessions of the same recipe, system and number of nodes; without any, it is left out."""
    fleet = Fleet("q", 1)
    before, now = (fleet.session(day)[fleet.recipes[0]] for day in (0, 1))
    history = open_history(tmp_path / "history.db")
    keep(history, {before.key: before})
    (figure,) = trend_figures(tmp_path / "history.db", now.session, [now])
    assert [len(curve.x) for curve in figure.curves] == [1, 1]
    assert figure.caption.startswith("2 runs of 2 sessions")
    assert trend_figures(tmp_path / "history.db", before.session, [before]) == []
    assert trend_figures(None, now.session, [now]) == []


def test_a_folder_that_is_no_session_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not the folder of a session"):
        write_page(tmp_path)


def test_two_thousand_runs_are_less_than_15_mb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """200 runs that get as little as each of 2,000 does have a tenth of it."""
    folder, of = tmp_path / "s", 200 / 2_000
    for name in ("_ALL_POINTS", "_ALL_TEXT", "_MOST_WHOLE"):
        monkeypatch.setattr(sections, name, int(getattr(sections, name) * of))
    write_large(folder, 200, 100)
    path = write_page(folder)
    page = Page(path)
    shown = sum(told.get("class") == "item" and "data-k" in told for told in page.all("details"))
    rows = len(page.rows) + sum(each.count("<tr data-k") for each in page.comments)
    assert (shown, rows) == (200, 400)
    assert path.stat().st_size * 10 < 15e6


def test_the_command_makes_the_report_anew(session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "pytest_llmbench.session.refusals.without_refused", lambda read, _: read
    )  # its records are made up
    command = typer.Typer()
    command.command()(report_session)
    told = CliRunner().invoke(command, ["--run-dir", str(tmp_path), "--json"])
    assert told.exit_code == 0, told.output
    found: dict[str, Any] = json.loads(told.stdout)
    assert found["report"] == str(session / "report.html")
    assert (found["verdicts"]["FAIL"], found["verdicts"]["PASS, no bound"], found["damage"]) == (3, 8, [])
    output = tmp_path / "x.html"
    assert CliRunner().invoke(command, [session.name, "--run-dir", str(tmp_path), "-o", str(output)]).exit_code == 0
    assert output.is_file()
    failed = CliRunner().invoke(command, ["nothing", "--run-dir", str(tmp_path)])
    assert isinstance(failed.exception, ConfigError)


def test_of_many_nodes_the_slowest_and_their_partners_are_drawn() -> None:
    """A matrix of a thousand nodes and eight rails would have a hundred million cells."""
    rates = {(at, (at + step) % 500): 100.0 if at == 77 else 380.0 for at in range(500) for step in (1, 2, 3)}
    pairs = [Reading(subject=f"n{one} - n{two}", statistic="pair_busbw", value=rate, unit="GB/s", nodes=2)
             for (one, two), rate in rates.items()]  # fmt: skip
    (record,) = (record for record in check_records(Path("s")) if record.check == "pairs")
    (figure,) = check_figures(record.model_copy(update={"report": Report(readings=tuple(pairs))}))
    assert figure.heat is not None
    assert len(figure.heat.y) == 64
    assert "n77" in figure.heat.y
    assert {"n78", "n79", "n80"} < {*figure.heat.x}
    assert "1500 pairs of 500 nodes" in figure.caption.replace(",", "")
