"""What a record says and its logs do not is found, by whomever it was signed."""

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from securesystemslib.signer import CryptoSigner

from pytest_llmbench.checks.base import CheckSettings, Site, get_check
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.plain import write_plain
from pytest_llmbench.core.record.records import RunRecord, SessionVerdicts, write_model
from pytest_llmbench.core.wire import layout
from pytest_llmbench.evidence import bundle
from pytest_llmbench.evidence.archive import BundleError
from pytest_llmbench.evidence.bundle import make_bundle
from pytest_llmbench.evidence.contents import Manifest
from pytest_llmbench.evidence.recorded import make_predicate, read_session
from pytest_llmbench.evidence.verify import verify
from pytest_llmbench.reporting.verdict import SessionVerdict, decide
from pytest_llmbench.session.law import Law
from pytest_llmbench.session.nodes.answers import RecordedFleet
from tests.support.hardware import node
from tests.unit.evidence.conftest import KEY, RECORDED, Evidence

RECORD = "runs/tiny/record.json"
LOG = "runs/tiny/steps/rank-00001.jsonl"


def test_a_pipe_is_refused_and_not_waited_for(evidence: Evidence, tmp_path: Path) -> None:
    """In the place of a bundle, and of a task whose secrets are looked for."""
    os.mkfifo(tmp_path / "bundle")
    with pytest.raises(ConfigError, match="the bundle cannot be read: it is not a regular file"):
        verify(tmp_path / "bundle", [KEY.public_key])
    (evidence.folder / "runs/tiny/task.json").unlink()
    os.mkfifo(evidence.folder / "runs/tiny/task.json")
    assert "not in the bundle: runs/tiny/task.json: no regular file" in evidence.verified().lines()


def test_an_honest_session_is_verified(evidence: Evidence) -> None:
    """Every number of its run is computed again, and what is taken from records is named."""
    told = evidence.verified()
    assert (told.verified, told.result, told.differences) == (True, "PASSED", [])
    assert (told.runs, told.checks, told.verdicts) == (1, 1, 2)
    assert told.numbers > 300
    assert [each.partition(":")[0] for each in told.taken] == ["test_user.py", "check disk"]
    assert told.document["verified"] is True
    assert list(told.lines())[-1] == "VERIFIED"


def test_without_a_trusted_signature_nothing_is_unpacked(evidence: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "unpack", None)
    monkeypatch.setattr(Manifest, "read", None)
    for signer, keys in ((None, [KEY.public_key]), (KEY, [CryptoSigner.generate_ed25519().public_key]), (KEY, [])):
        with pytest.raises(BundleError, match="no trusted key has signed it"):
            verify(evidence.bundled(signer), keys)


@pytest.mark.parametrize(("path", "text"), [
    (RECORD, '{"schema_version": 1}'), (RECORD, "[" * 200_000), ("session.json", "{"), ("system.json", "[]"),
    ("verdicts.json", "{}"), ("journal", "00000000 {}\n"), ("junit.xml", "<a>"), ("checks/memory/record.json", "0"),
])  # fmt: skip
def test_unreadable_is_no_proof(evidence: Evidence, path: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However its signer got it in: the file is named, in one line, without a traceback."""
    honest = read_session(evidence.folder)
    (evidence.folder / path).write_text(text)
    monkeypatch.setattr(bundle, "read_session", lambda _: honest)
    try:
        said = "|".join(evidence.verified().differences)
    except BundleError as error:
        said = str(error)
    assert Path(path).name in said
    assert "\n" not in said


def test_todays_recipe_decides_what_had_to_run(evidence: Evidence) -> None:
    """Plan, task, record and log all have half the steps; the recipe of whoever verifies has them all."""
    due = RunRecord.read(evidence.record).recipe
    law = Law(recipes={("tiny", "full"): due.model_copy(update={"steps": 2 * due.steps, "precision": "bf16"})})
    told = verify(evidence.bundled(), [KEY.public_key], law=law)
    (words,) = told.differences
    assert words.startswith("run tiny: wrong_work: ")
    assert "precision: the record has fp32, today's recipe tiny bf16; steps: the record has 24, today's" in words
    told = verify(evidence.target, [KEY.public_key], law=replace(law, as_recorded=True))
    assert (told.verified, "judged as recorded, by its own recipe: precision" in told.taken[0]) == (True, True)
    told = verify(evidence.target, [KEY.public_key], law=Law())
    assert (told.verified, "not compared with a recipe of today" in told.taken[0]) == (True, True)


def first(data: Any, name: str) -> Any:
    return next(each for each in data["judgements"] if each["statistic"] == name)


LIES: dict[str, Callable[[Any], object]] = {
    "metrics.throughput.value": lambda data: data["metrics"]["throughput"].update(value=1e6),
    "metrics.throughput.low": lambda data: data["metrics"]["throughput"].update(low=1e6),
    "metrics.fastest": lambda data: data["metrics"].update(fastest=data["metrics"]["throughput"]),
    "metrics.loss_drop": lambda data: data["metrics"].pop("loss_drop"),
    "steps[3].loss": lambda data: data["steps"][2].update(loss=1.0),
    "steps: the record has": lambda data: data["steps"].pop(),
    "rank_info[1].host": lambda data: data["rank_info"][0].update(host="another"),
    "versions.torch": lambda data: data["versions"].update(torch="9.9"),
    "device": lambda data: data.update(device="H100 80GB HBM3"),
    "steady.mean": lambda data: data["steady"].update(mean=1e-9),
    "the log says other_run": lambda data: data.update(run_token="llmbench:another/tiny"),
    "throughput: the record says": lambda data: first(data, "throughput").update(measured="1000000.0 words/s"),
    "the record says FAIL": lambda data: first(data, "throughput").update(verdict="FAIL"),
    "the record says INCONCLUSIVE": lambda data: first(data, "loss_drop").update(verdict="INCONCLUSIVE"),
    "bound": lambda data: first(data, "throughput").update(threshold=">= 1 words/s"),
    "is not in the recipe": lambda data: first(data, "throughput").update(reference="easy"),
    "is not the one in the plan": lambda data: data["recipe"]["references"][1].update(at_least="5 words/s"),
    "the records FAIL": lambda data: first(data, "throughput").update(verdict="FAIL"),
}


@pytest.mark.parametrize("words", LIES)
def test_a_record_that_lies_is_named(evidence: Evidence, words: str) -> None:
    evidence.change(RECORD, LIES[words])
    told = evidence.verified()
    assert not told.verified
    assert any(words in each for each in told.differences), told.differences


def test_a_verdict_that_its_number_misses_is_named(evidence: Evidence) -> None:
    """A bound that was raised after the run, in plan and record alike, makes its PASS a lie."""
    for path in ("session.json", RECORD):
        evidence.replace(path, '"10 words/s"', '"1000000000 words/s"')
    evidence.replace(RECORD, ">= 10 words/s", ">= 1e+09 words/s")
    assert any("the record says PASS, the log FAIL" in each for each in evidence.verified().differences)


def test_a_log_that_says_otherwise_is_named(evidence: Evidence) -> None:
    """Steps that took twice as long, a loss that is none, and a log that ends early."""
    log, whole = evidence.folder / LOG, (evidence.folder / LOG).read_text()
    rows = [json.loads(row) for row in whole.splitlines()]
    slower = [{**row, "seconds": 2 * row["seconds"]} if row["event"] == "step" else row for row in rows]
    broken = [{**row, "loss": "NaN"} if row.get("step") == 5 else row for row in rows]
    for altered in (slower, broken):
        log.write_text("".join(json.dumps(row) + "\n" for row in altered))
        assert evidence.verified().differences
    log.write_text("\n".join(whole.splitlines()[:12]))
    assert "the record says that it can be judged, the log says" in evidence.verified().differences[0]
    log.unlink()
    assert not evidence.verified().verified


def test_the_report_has_every_verdict_of_the_records(evidence: Evidence) -> None:
    """One that is another, one that is gone, and one that no record has are differences."""
    path, text = evidence.folder / "junit.xml", (evidence.folder / "junit.xml").read_text()
    path.write_text(text.replace('name="verdict" value="PASS"', 'name="verdict" value="FAIL"', 1))
    told = evidence.verified()
    assert any("it says FAIL, the records PASS" in each for each in told.differences)
    assert told.result == "FAILED"
    path.write_text(re.sub(r'<testcase classname="test_user" name="test_own.*?</testcase>', "", text))
    told = evidence.verified()
    assert any("is not in it" in each for each in told.differences)
    assert told.result == "FAILED"
    path.write_text(text)
    evidence.change(RECORD, lambda data: data.update(judgements=data["judgements"][:1]))
    assert any("it says PASS, and no record does" in each for each in evidence.verified().differences)


def test_a_check_that_passed_over_its_findings_is_named(evidence: Evidence) -> None:
    record, found = "checks/memory/record.json", {"kind": "memory", "severity": "ISOLATE", "message": "gone"}
    whole = (evidence.folder / record).read_text()
    host = json.loads(whole)["hosts"][0]
    evidence.change(record, lambda data: data["report"].update(findings=[{"host": host, **found}]))
    assert any("the report comes to FAIL" in each for each in evidence.verified().differences)
    (evidence.folder / record).write_text(whole)
    evidence.replace("system.json", '"1 GiB"', '"100000 GiB"')
    assert any("and there is no finding" in each for each in evidence.verified().differences)


def test_a_check_is_judged_by_its_answers(evidence: Evidence) -> None:
    """A reading, or an answer, that was changed is named; without an answer, the report is taken from the record."""
    record, answer = "checks/memory/record.json", "checks/memory/steps/001-host-facts/answers/rank-00000.json"
    whole = (evidence.folder / record).read_text()
    evidence.change(record, lambda data: data["report"]["readings"][0].update(value=99.0))
    assert any(each.startswith("check memory: readings[1].value") for each in evidence.verified().differences)
    evidence.change(record, lambda data: data["report"].update(readings=[]))
    assert any("the record has 0 of them" in each for each in evidence.verified().differences)
    (evidence.folder / record).write_text(whole)
    evidence.replace(answer, '"total": 25276510208', '"total": 99276510208')
    assert any(each.startswith("check memory: ") for each in evidence.verified().differences)
    (evidence.folder / answer).unlink()
    told = evidence.verified()
    assert any("check memory: what was found and measured: an answer" in each for each in told.taken)


def test_a_page_that_could_say_anything_is_left_out(evidence: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report follows from the other files; a bundle that has one all the same is not verified."""
    (evidence.folder / "report.html").write_text("<p>All is well</p>")
    told = evidence.verified()
    assert told.verified
    assert any(each.startswith("report.html: `llmbench report` writes it again") for each in told.left_out)
    with monkeypatch.context() as patch:
        patch.setattr("pytest_llmbench.evidence.contents.MADE_AGAIN", {})
        evidence.bundled()
    told = verify(evidence.target, [KEY.public_key])
    assert any(each.startswith("report.html: ") for each in told.differences)


def test_an_engine_that_is_not_here_computes_nothing(evidence: Evidence) -> None:
    for path in ("session.json", RECORD):
        evidence.replace(path, '"unigram"', '"another"')
    told = evidence.verified()
    assert not told.verified
    assert "its engine cannot be used here" in told.not_recomputed[0]
    assert told.objections == told.not_recomputed
    evidence.change("system.json", lambda data: data.update(bare=False))
    assert evidence.verified().objections[-1].startswith("nothing was computed again")


@pytest.mark.parametrize("verdict", ["ERROR", "INCONCLUSIVE", "INCOMPLETE", "FAIL"])
def test_a_session_with_a_test_that_was_not_judged_has_not_passed(evidence: Evidence, verdict: str) -> None:
    evidence.replace("junit.xml", 'name="verdict" value="PASS"', f'name="verdict" value="{verdict}"')
    assert evidence.verified().result == "FAILED"


def test_a_pass_whose_teardown_broke_is_stated_as_failed(evidence: Evidence) -> None:
    evidence.replace("junit.xml", "</testcase>", "<error/></testcase>")
    session = read_session(evidence.folder)
    assert (session.result, make_predicate(session, {})["passedTests"]) == ("FAILED", [])


def test_a_session_that_was_skipped_in_part_has_a_warning(evidence: Evidence) -> None:
    path, text = evidence.folder / "junit.xml", (evidence.folder / "junit.xml").read_text()
    head, case = text.rsplit('name="verdict" value="PASS"', 1)
    path.write_text(f'{head}name="verdict" value="SKIP"{case.replace("</testcase>", "<skipped/></testcase>", 1)}')
    assert evidence.verified().result == "WARNED"
    path.write_text(text)
    evidence.change(RECORD, lambda data: data.update(simulated="slow@3"))
    assert evidence.verified().result == "FAILED"
    evidence.change(RECORD, lambda data: data.update(simulated=None))
    journal = evidence.folder / "journal"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-1]))
    assert evidence.verified().result == "FAILED"


@pytest.mark.parametrize(
    "text",
    ["https://me:password1234@host/", "-----BEGIN OPENSSH PRIVATE KEY-----", "hf_" + "a1" * 17, "api_key=q1w2e3r4t5z6"],
)
def test_a_secret_in_a_log_is_not_handed_over(evidence: Evidence, text: str) -> None:
    """Nothing is written; the place is named, and a person may say that it is none."""
    log = evidence.folder / "runs/tiny/logs/rank-0.log"
    log.write_text(f"begins\nlogged in: {text}\n")
    with pytest.raises(ConfigError, match=r"runs/tiny/logs/rank-0\.log:2"):
        evidence.bundled()
    assert not evidence.target.exists()
    make_bundle(evidence.folder, evidence.target, KEY, ["runs/tiny/logs/rank-0.log"])
    with pytest.raises(ConfigError, match="no such file"):
        make_bundle(evidence.folder, evidence.target, KEY, ["runs/tiny/logs/rank-9.log"])


def test_the_value_of_a_secret_variable_is_not_handed_over(evidence: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "quite plain words")
    (evidence.folder / "runs/tiny/logs/rank-0.log").write_text("x\n" * 600_000 + "quite plain words\n")
    with pytest.raises(ConfigError, match=r"rank-0\.log:600001"):
        evidence.bundled()


def test_links_and_pickles_stay_behind(evidence: Evidence) -> None:
    (evidence.folder / "link").symlink_to("/etc/passwd")
    (evidence.folder / "runs/folder").symlink_to("/etc")
    (evidence.folder / "runs/tiny/task.pkl").write_bytes(b"")
    told = evidence.verified()
    assert told.verified
    assert sorted(each.partition(":")[0] for each in told.left_out) == ["link", "runs/folder", "runs/tiny/task.pkl"]


def keep(folder: Path, entry: str, config: dict[str, Any], *answers: dict[str, Any]) -> None:
    (folder / "answers").mkdir(parents=True)
    (folder / layout.TASK).write_text(json.dumps({"entry": entry, "config": config}))
    for rank, data in enumerate(answers):
        write_plain(layout.answer(folder, rank), {"host": "a", "data": data})


def test_the_facts_of_the_machine_are_among_the_answers_that_are_kept(tmp_path: Path) -> None:
    """The facts may have been asked for by an earlier check."""
    steps = tmp_path / "memory_bandwidth" / layout.STEPS
    keep(tmp_path / "gemm" / layout.STEPS / "002-machine", "pytest_llmbench.workloads.node.hardware:facts",
         {"sysfs": "/sys"},
         node("H200", 2).model_dump(mode="json"))  # fmt: skip
    rate: dict[str, Any] = {"device": "NVIDIA H200", "setting": {}, "gemm": None, "memory": 2.0e12, "host_device": None}
    keep(steps / "001-compute", "", {}, rate, {**rate, "memory": 4.36e12})
    site = Site(system="test", nodes=1, gpus_per_node=2, selected=("memory_bandwidth",))
    fleet: Any = RecordedFleet(site, ("a",), steps=steps, checks=tmp_path)
    report = get_check("memory_bandwidth").run(fleet, CheckSettings())
    assert [(finding.subject, finding.kind) for finding in report.findings] == [("GPU 0", "below_physics")]
    assert report.bounds == (
        "memory_triad: physics expects 4278 GB/s, FAIL below 3636: 0.87 of 6144 bit × 3201 MHz × 2 = 4917 GB/s",
    )


@pytest.mark.parametrize("code", [1, 14])
def test_missing_software_is_the_same_word_with_a_detailed_exit_code(evidence: Evidence, code: int) -> None:
    """Of a session that lacked software, `verdict.json` says so with either exit code, and contradicts nothing."""
    row = {"test": "t", "verdict": "ERROR", "reason": "run tiny cannot be judged (engine_missing): no PyTorch"}
    write_model(evidence.folder / layout.VERDICTS, SessionVerdicts(session=RECORDED.name, tests=(row,)))
    word, reason = decide([row], exit_code=1)
    assert word == "not_measured"
    write_model(evidence.folder / layout.VERDICT, SessionVerdict(
        verdict=word, reason=reason, counts={"ERROR": 1}, exit_code=code, session=RECORDED.name, ended="e",
        llmbench_version="1",
    ))  # fmt: skip
    differences = evidence.verified().differences
    assert any(line.startswith(layout.VERDICTS) for line in differences)
    assert not [line for line in differences if line.startswith(f"{layout.VERDICT}:")]
