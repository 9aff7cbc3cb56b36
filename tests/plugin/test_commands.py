"""A framework that is a command, through whole sessions: judged by its log, never by its exit code."""

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.core.quantity import for_people
from tests.conftest import Result, UserFolder
from tests.support.standin import Edit, MegatronLM, alive, iteration

ARGUMENTS = ("--system", "here.yaml", "-k", "tiny")
END = "[default0]:[after training is done]"


@pytest.fixture
def megatron(user: UserFolder) -> MegatronLM:
    framework = MegatronLM(user)
    framework.install()
    framework.recipe()
    return framework


def output(result: Result) -> str:
    return (result.session / "runs" / "tiny" / "logs" / "output.log").read_text()


@pytest.mark.parametrize("distribution", ["-n0", "-n2"])
def test_a_whole_run_is_judged(megatron: MegatronLM, distribution: str) -> None:
    """Under the real torchrun, and under xdist: every line is read, and the record says what ran."""
    megatron.install(torchrun=distribution == "-n0")
    result = megatron.user.run(*ARGUMENTS, distribution, code=0)
    record = result.record()
    assert result.case.properties["verdict"] == "PASS"
    assert [step["step"] for step in record["steps"]] == list(range(1, 31))
    assert {step["tokens"] for step in record["steps"]} == {8 * 32}
    assert record["metrics"]["loss_drop"]["value"] == pytest.approx(5.558423 - 4.21, abs=0.1)
    assert (record["problem"], record["unjudged"], record["unreadable"]) == (None, {}, [])
    assert record["device"] == "cpu"
    assert record["hosts"] == [os.uname().nodename]
    assert record["provenance"]["exit_code"] == "0"
    assert record["provenance"]["python"]
    assert "--tensor-model-parallel-size 2" in output(result)
    assert re.search(r"\[default1\]: *\[2026-.*iteration +30/", output(result))
    assert alive(result.session) == []


def nan_iterations(lines: list[str]) -> list[str]:
    """The framework counted iterations without a finite loss."""
    at = iteration(lines, 20)
    lines[at] = lines[at].replace("nan iterations:   0", "nan iterations:   2")
    return lines


def not_a_number(lines: list[str]) -> list[str]:
    at = iteration(lines, 20)
    lines[at] = re.sub(r"lm loss: \S+", "lm loss: NAN", lines[at])
    return lines


def deaf(lines: list[str]) -> list[str]:
    return ["[default0]:#deaf", *lines]


def garbled(lines: list[str], *numbers: int) -> list[str]:
    for number in numbers:
        at = iteration(lines, number)
        lines[at] = lines[at][: len(lines[at]) // 2]
    return lines


def dies(lines: list[str]) -> list[str]:
    at = iteration(lines, 12)
    return [*lines[:at], "[default1]:[rank1]: ValueError: the dog ate it", "[default1]:#exit 1"]


WRONG: dict[str, tuple[Edit, str, str]] = {
    "no_end": (
        lambda lines: [line for line in lines if not line.startswith(END)], "no_evidence_of_completion",
        "its log ends after step 30 and nothing proves that the run",
    ),
    "other_world": (
        lambda lines: [line.replace("world size: 2", "world size: 4") for line in lines], "wrong_ranks",
        "its log reports 4 ranks; the run should have 2",
    ),
    "skipped": (nan_iterations, "implausible", "2 iterations had a loss or a gradient that is not finite"),
    "nan": (not_a_number, "not_finite", "loss is nan at step 20"),
    "cut": (
        lambda lines: garbled(lines, 7, 8, 9), "unreadable_log", "3 lines that look like steps could not be read",
    ),
    "one_line": (lambda lines: garbled(lines, 7), "unreadable_log", "1 line that looks like a step could not be read"),
    "dies": (dies, "command_failed", "exit code 1: ValueError: the dog ate it; the run had reached step 11 of 30"),
}  # fmt: skip


def test_what_a_log_says_decides(megatron: MegatronLM, subtests: pytest.Subtests) -> None:
    """What is wrong is an ERROR that says so, with what the log gives as no verdict; exit codes prove nothing."""
    for name, (edit, *_) in WRONG.items():
        megatron.recipe(name, edit)
    megatron.recipe("fails_late", lambda lines: [*lines, "[default0]:#exit 3"])
    result = megatron.user.run("--system", "here.yaml", "-k", "fails_late or " + " or ".join(WRONG))
    cases = {case.properties["run"]: case for case in result.cases.values()}
    for name, (_, kind, said) in WRONG.items():
        with subtests.test(name):
            record, message = result.record(name), cases[name].message
            assert cases[name].properties["verdict"] == "ERROR"
            assert f"({kind})" in message
            assert said in message
            assert record["metrics"] == {}
            throughput = record["unjudged"]["throughput"]["value"]
            assert f"its log gives throughput {for_people(throughput)} words/s, which is not a verdict" in message
    assert result.text.count("which is not a verdict") == len(WRONG)
    assert result.record("no_end")["provenance"]["exit_code"] == "0"
    with subtests.test("a failure after the end costs nothing: all the work was done and proved"):
        assert cases["fails_late"].properties["verdict"] == "PASS"
        assert result.record("fails_late")["provenance"]["exit_code"] == "1"


def test_a_hang_is_ended_and_its_last_line_quoted(megatron: MegatronLM) -> None:
    """No line for long: the run is ended with all its processes, whatever they make of SIGTERM."""

    def hangs(lines: list[str]) -> list[str]:
        at = iteration(lines, 10)
        last = "[default1]:Saving weights ..."
        return ["[default0]:#deaf", *lines[:at], last, "[default1]:#hang", "[default0]:#hang"]

    megatron.recipe("tiny", hangs, deadlines={"hang_factor": 5.0, "hang_floor_s": 3.0})
    result = megatron.user.run(*ARGUMENTS)
    message = result.error
    assert "(hang): no step for " in message
    assert "the last line of its output is: [default1]: Saving weights ..." in message
    assert alive(result.session) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["SIGINT", "SIGKILL"])
def test_nothing_outlives_pytest(megatron: MegatronLM, number: signal.Signals) -> None:
    """Ranks that ignore SIGTERM, in sessions of their own, end with pytest."""
    megatron.install(speed=0.02)
    megatron.recipe("tiny", deaf)
    process = megatron.user.start(*ARGUMENTS, "-o", "llmbench_heartbeat_timeout=15")
    session = megatron.user.wait_for(lambda session: running(session) and session)
    assert len([line for line in alive(session) if "pretrain_gpt.py --tensor" in line]) >= 2
    process.send_signal(number)
    process.communicate(timeout=300)
    megatron.user.wait_for(lambda session: not alive(session), timeout_s=60)


def running(session: Path) -> bool:
    log = session / "runs" / "tiny" / "logs" / "output.log"
    return log.is_file() and "training ..." in log.read_text()


def test_the_time_limit_is_an_end_for_a_recipe_that_is_meant_to_be_cut_off(megatron: MegatronLM) -> None:
    """The same run, cut off after a minute, is an error for any other recipe."""
    user = megatron.user
    megatron.install(speed=0.1)  # 30 steps take more than a minute
    meant: dict[str, Any] = {"end": "time_limit", "steps": 30, "time_limit": "00:01:00"}
    megatron.recipe("meant", deaf, **meant)
    megatron.recipe("late", deaf, **{**meant, "end": "steps"})
    processes = []
    for name in ("meant", "late"):
        (user.path / name).mkdir()
        user.env["TMPDIR"] = str(user.path / name)  # a lock of its own, so that both run at once
        processes.append(user.start("--system", "here.yaml", "-k", name, "--llmbench-run-dir", name))
    texts = [process.communicate(timeout=120)[0] for process in processes]
    sessions = [next((user.path / name).glob("*-*/junit.xml")).parent for name in ("meant", "late")]
    meant_one, late = (
        Result(process.returncode, text, session)
        for process, text, session in zip(processes, texts, sessions, strict=True)
    )
    assert meant_one.returncode == 0, meant_one.text
    record = meant_one.record("meant")
    assert record["cut_off"] == "ended at its time limit of 00:01:00"
    assert 5 < len(record["steps"]) < 30
    assert late.case.outcome == "error"
    assert "(time_limit): not finished within its time limit of 00:01:00" in late.case.message
    assert "which is not a verdict" in late.case.message
    assert late.record("late")["cut_off"] is None
    assert alive(meant_one.session) == alive(late.session) == []


@pytest.mark.parametrize("plan", [(), ("--plan",)], ids=["run", "plan"])
def test_a_system_without_the_environment_is_an_error_at_once(megatron: MegatronLM, plan: tuple[str, ...]) -> None:
    result = megatron.user.run("--cluster", "local", "-k", "tiny", *plan)
    said = "engine megatron_lm is a command with an environment of its own, and system local has no entry for it"
    assert said in result.text
    assert result.returncode == pytest.ExitCode.TESTS_FAILED
    if plan:
        assert f"CANNOT RUN: {said}" in result.text
    else:
        assert f"(environment_missing): {said}" in result.error
        assert not (result.session / "runs" / "tiny" / "logs").exists()


def test_what_is_not_prepared_is_named_with_what_makes_it(megatron: MegatronLM) -> None:
    wanted = {"name": "corpus", "path": "{root}/corpus.bin", "make": "make the corpus in {root}", "why": "data"}
    megatron.recipe(prepare=[wanted])
    result = megatron.user.run(*ARGUMENTS)
    message = result.error
    root = megatron.user.path / "megatron"
    assert "(not_prepared)" in message
    assert f"{root}/corpus.bin" in message
    assert f"make it with: make the corpus in {root}" in message
    assert not (result.session / "runs" / "tiny" / "logs" / "output.log").exists()


def test_the_environment_is_that_of_its_file_and_secrets_are_told_nowhere(megatron: MegatronLM) -> None:
    """Ranks and checks see the secret and the variables of `env_file`; no file and no terminal shows a value."""
    folder = megatron.user.path
    secret = "hf_8f2c6a1be45d"
    (folder / "token").write_text(secret + "\n")
    (folder / "exports.sh").write_text("export FROM_FILE=1 BOTH=file\n")
    megatron.install(
        env_file=str(folder / "exports.sh"), secrets={"HF_TOKEN": str(folder / "token")}, env={"BOTH": "own"}
    )
    sees = f'test "${{{{#HF_TOKEN}}}}" = {len(secret)} && test "$FROM_FILE" = 1 && test "$BOTH" = own'
    megatron.recipe(prepare=[{"name": "sees", "check": sees, "make": "nothing"}])
    rank = folder / "megatron" / "pretrain_gpt.py"
    look = "print('SEEN', len(os.environ['HF_TOKEN']), os.environ['FROM_FILE'], os.environ['BOTH'], flush=True)\n"
    rank.write_text("import os\n" + look + rank.read_text())
    result = megatron.user.run(*ARGUMENTS, code=0)
    assert f"SEEN {len(secret)} 1 own" in output(result)
    assert secret not in result.text
    files = [path for path in result.session.rglob("*") if path.is_file()]
    assert any(path.name == "command.json" for path in files)
    assert [path for path in files if secret.encode() in path.read_bytes()] == []
