"""`--llmbench-early-verdict`: a run ends as soon as every threshold of its tests is decided, and only then."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TORCH, Result, UserFolder, read_junit

STEPS, WARM_UP = 120, 2
# After 30, 42, 60 and 84 of its steps.
FIRST_LOOK, FORTY_PERCENT = 30, 48
SLOW: dict[str, Any] = {"steps": STEPS, "options": {"step_s": 0.1}}


def bound(name: str = "speed", **changes: Any) -> dict[str, Any]:
    """A bound on the speed of this machine, which no machine is near to."""
    side = {} if "at_most" in changes else {"at_least": "0.01 words/s"}
    told = {"why": "an example", "source": "this test", "date": "2026-11-23", "applies_to": {"system": "local"}}
    return {"name": name, "statistic": "throughput", **side, **told, **changes}


# However noisy the machine, each step is on this side of it.
MISSED = bound("missed", at_most="0.01 words/s")
LEARNS = bound("learns", statistic="loss_drop", at_least="-9 nat")


def early(user: UserFolder, *options: str) -> Result:
    """Run the tests of the folder with `--llmbench-early-verdict`."""
    return user.run("--cluster", "local", "--llmbench-early-verdict", *options)


@pytest.mark.parametrize("distribution", ["-n0", "-n2"])
def test_a_decided_run_ends_before_two_fifths_of_its_steps(user: UserFolder, distribution: str) -> None:
    """All ranks after the same step; record, report and terminal say where, why, and what that saved."""
    user.recipe(references=[bound(), MISSED, LEARNS, bound("elsewhere", applies_to={"system": "moon"})], **SLOW)
    result = early(user, distribution)
    assert result.returncode == pytest.ExitCode.TESTS_FAILED, result.text
    verdicts = {case.properties["reference"]: case.properties["verdict"] for case in result.cases.values()}
    assert verdicts == {"speed": "PASS", "missed": "FAIL", "learns": "PASS", "elsewhere": "SKIP"}
    record = result.record()
    told, done, look = record["early"], len(record["steps"]), record["early"]["look"]
    assert (told["planned"], told["looks"][-1], told["done"]) == (STEPS, look, done)
    assert FIRST_LOOK <= look <= done < FORTY_PERCENT  # the first look, or the second on a machine that stood still
    assert {(rank["asked_to_end"], rank["end_steps"]) for rank in record["rank_info"]} == {(True, done)}
    assert len(record["rank_info"]) > 1
    assert told["alpha"] == pytest.approx(0.0015)
    assert told["decided"] == [
        "speed: throughput >= 0.01 words/s: PASS",
        "missed: throughput <= 0.01 words/s: FAIL",
        "learns: loss_drop >= -9 nat: PASS",
    ]
    assert min(told["hours_saved"], told["hours_spent"]) > 0
    assert record["steady"]["left_out"] + record["steady"]["judged"] == look - WARM_UP
    assert {"loss_drop", "peak_memory"} & record["metrics"].keys() == {"loss_drop"}
    fail = next(case for case in result.cases.values() if case.properties["verdict"] == "FAIL")
    assert "it is not known what would have come later" in fail.message
    assert float(fail.properties["alpha"]) == pytest.approx(0.0015)
    assert fail.properties["early_verdict"].startswith(f"judged by its first {look} of {STEPS} steps")
    assert fail.properties["hours_saved"].endswith("node-hours")
    assert re.search(r"1 of 1 run ended early: \S+ node-hours saved", result.text)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the session of a run that was ended early is kept for all tests that look at one."""
    return tmp_path_factory.mktemp("kept") / "ended"


@pytest.fixture
def ended(user: UserFolder, kept: Path) -> Path:
    user.recipe(references=[bound(), MISSED], **SLOW)
    if not kept.exists():
        shutil.copytree(early(user).session, kept)
    return shutil.copytree(kept, user.path / "ended")


def verdicts(session: Path) -> dict[str, str]:
    return {name: case.properties["verdict"] for name, case in read_junit(session / "junit.xml").items()}


def test_the_whole_run_and_the_replay_have_the_same_verdicts(user: UserFolder, ended: Path) -> None:
    """The verdict follows from the record alone."""
    record = json.loads((ended / "runs" / "tiny" / "record.json").read_text())
    whole = user.run("--cluster", "local")
    assert len(whole.record()["steps"]) == STEPS
    replayed = user.run("--replay", "ended", "--system", "local")
    assert verdicts(ended) == verdicts(whole.session) == verdicts(replayed.session)
    assert replayed.record()["steady"] == record["steady"]
    assert replayed.record()["early"] == record["early"]


WHOLE: dict[str, tuple[dict[str, Any], str]] = {
    "body": ({}, "::test_body[body] has no reference"),
    "memory": (
        {"references": [bound(), bound("memory", statistic="peak_memory", at_least="1 B")]}, "memory is about",
    ),
    "moon": ({"references": [bound(applies_to={"system": "moon"})]}, "none of its references is for this machine"),
    "short": ({"steps": 22}, "its 22 steps are too few for a look before the last one"),
}  # fmt: skip


def test_a_run_that_needs_all_its_steps_has_them(user: UserFolder) -> None:
    """What is asked in the body of a test, and what is about all steps, is asked of a whole run; the reason is told."""
    given: dict[str, Any] = {"steps": STEPS, "references": [bound()], "options": {"step_s": 0.02}}
    for name, (changes, _) in WHOLE.items():
        user.recipe(name, **(given | changes))
    user.test()
    user.test(
        'import pytest\n@pytest.mark.recipe("body")\ndef test_body(run):\n    assert run.throughput\n', "test_body.py"
    )
    result = early(user)
    for name, (_, why) in WHOLE.items():
        record = result.record(name)
        assert len(record["steps"]) == record["recipe"]["steps"], result.text
        assert why in record["early"]["whole"]
        assert record["early"]["alpha"] == 0.01
        assert "loss_drop" in record["metrics"]
        assert why in " ".join(result.text.split())


def test_what_the_first_steps_cannot_tell_is_refused_in_a_body(user: UserFolder, ended: Path) -> None:
    """A test with a reference that also asks for the last loss is an ERROR of a run that was ended early."""
    user.test("def test_both(run, reference):\n    assert run.throughput in reference\n    assert run.loss_drop\n")
    case = user.run("--replay", "ended", "--system", "local").cases["test_both[tiny-speed]"]
    assert case.properties["verdict"] == "ERROR"
    why = "the run was ended early, and that needs all of its steps: leave out --llmbench-early-verdict"
    assert why in case.message


def test_an_undecided_run_has_all_its_steps(user: UserFolder) -> None:
    apart = bound(at_least="3000 words/s", between_runs="50 %", runs=2)
    user.recipe(steps=40, references=[apart], options={"step_s": 0.05})
    result = early(user)
    record = result.record()
    assert len(record["steps"]) == 40
    assert (record["early"]["looks"][-1], record["early"]["alpha"]) == (40, 0.004)
    assert result.case.properties["verdict"] == "INCONCLUSIVE"


def test_a_run_that_stops_by_itself_is_an_error(user: UserFolder) -> None:
    """The steps are missing, and the session did not ask for that, whoever wrote the stop file."""
    user.recipe(references=[bound(at_least="1 words/s", at_most="1e9 words/s")], **SLOW)
    process = user.start("--cluster", "local", "--llmbench-early-verdict", "-s")
    user.wait_for(lambda session: (session / "runs" / "tiny" / "steps").exists())
    assert user.session is not None
    (user.session / "runs" / "tiny" / "enough.json").write_text("{}")
    result = user.finish(process)
    assert result.case.properties["verdict"] == "ERROR", result.text
    problem = result.record()["problem"]
    assert problem["kind"] == "steps_missing"
    assert "its session did not ask for it" in problem["message"]


def damaged(session: Path, change: str) -> None:
    """Change a recorded run that was ended early, in one way."""
    run = session / "runs" / "tiny"
    record = json.loads((run / "record.json").read_text())
    if change == "no word of it in the record":
        (run / "record.json").write_text(json.dumps(record | {"early": None}))
    for log in (run / "steps").glob("*.jsonl"):
        lines = log.read_text().splitlines()
        if change == "ended by itself":
            lines = [line.replace('"asked":true', '"asked":false') for line in lines]
        if change == "cut":
            lines = [line for line in lines if f'"step":{record["early"]["done"]},' not in line]
        log.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("change", ["no word of it in the record", "ended by itself", "cut"])
def test_a_run_that_its_session_did_not_shorten_is_an_error(user: UserFolder, ended: Path, change: str) -> None:
    """Both the session and its ranks have to say so, and the steps up to there have to be there."""
    damaged(ended, change)
    result = user.run("--replay", "ended", "--system", "local")
    assert set(verdicts(result.session).values()) == {"ERROR"}, result.text
    assert result.record()["problem"]["kind"] == "steps_missing"


def test_a_plan_says_when_a_run_is_looked_at(user: UserFolder) -> None:
    user.recipe(references=[bound()], steps=200)
    cool = bound("cool", statistic="throttled", at_most="50 %")
    del cool["applies_to"]
    user.recipe("cool", steps=200, references=[cool])
    text = " ".join(early(user, "--plan").text.split())
    assert "is looked at after 50, 70, 100, 140 and 200 steps" in text
    assert "runs whole: reference cool is about throttled, which needs all steps" in text


def test_pytorch_ranks_end_together(user: UserFolder) -> None:
    recipe = {**TORCH, "steps": 300, "references": [bound()]}
    model = {"layers": 2, "hidden_size": 64, "attention_heads": 4, "vocab_size": 256, "dropout": 0.0}
    user.recipe(**recipe, model=model, sequence_length=64)
    result = early(user)
    assert result.returncode == 0, result.text
    record = result.record()
    assert record["early"]["whole"] is None
    assert 75 <= len(record["steps"]) < 300  # its steps are short: when the first look is over, many more are made
    assert {rank["end_steps"] for rank in record["rank_info"]} == {len(record["steps"])}
    assert result.case.properties["verdict"] == "PASS"
