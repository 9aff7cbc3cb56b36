"""Every declared test ends in one verdict in the XML, however the session ends."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import threading
import time

import pytest

from tests.conftest import Case, Result, UserFolder, Watch, read_junit
from tests.support.recorded import write_page
from tests.support.standin import log_at_hand
from tests.support.waiting import wait_until

ENDLESS = 1_000_000
DECLARED = {
    "test_reference[first-learns]", "test_reference[second-learns]", "test_finite[first]", "test_finite[second]",
}  # fmt: skip
TESTS = """
def test_reference(run, reference):
    assert run.measured(reference.statistic) in reference

def test_finite(run):
    assert run.record.steps
"""
OURS = ["-k", "first or second"]
XDIST = pytest.mark.parametrize("distribution", ["-n0", "-n2"])


@pytest.fixture
def declaring(user: UserFolder) -> UserFolder:
    for name in ("first", "second"):
        user.recipe(name, steps=ENDLESS)
    user.test(TESTS)
    user.env["PYTHONPATH"] = str(user.path)
    return user


def unjudged(result: Result, user: UserFolder, why: str) -> dict[str, Case]:
    """The declared tests of both XML files, each an error for that reason that names its run."""
    assert "INTERNALERROR" not in result.text, result.text
    cases = result.cases
    assert read_junit(user.path / "mine.xml", result.session) == cases, result.text
    ours = {name: case for name, case in cases.items() if "[" in name}
    assert set(ours) == DECLARED, result.text
    for name, case in ours.items():
        assert (case.outcome, case.properties["verdict"]) == ("error", "ERROR"), (name, case)
        assert case.properties["run"] == case.properties["recipe"] == re.findall(r"\[(\w+)", name)[0]
        assert re.search(why, case.properties["reason"]), case.properties["reason"]
    return ours


@pytest.mark.parametrize(("distribution", "number"), [
    ("-n0", signal.SIGTERM), ("-n2", signal.SIGTERM), ("-n0", signal.SIGHUP), ("-n2", signal.SIGINT),
])  # fmt: skip
def test_signals_in_a_run(declaring: UserFolder, watch: type[Watch], distribution: str, number: signal.Signals) -> None:
    """A CI system, a lost connection and a person all end it in order, and nothing declared is missing."""
    process = declaring.start("--cluster", "local", distribution, "--junitxml=mine.xml", *OURS)
    declaring.wait_for(lambda session: watch.steps(session, "first") > 2)
    process.send_signal(number)
    result = declaring.finish(process, timeout_s=60)
    word = "Ctrl-C" if number == signal.SIGINT else number.name
    unjudged(result, declaring, f"session_ended|the session was ended by {word} before this test was judged")
    assert result.returncode == pytest.ExitCode.INTERRUPTED
    assert result.record("first")["problem"]["kind"] == "session_ended"
    assert len(re.findall(r"^(?:first|second) .* ERROR(?: .*)?$", result.text, re.MULTILINE)) == len(DECLARED)
    was_interrupted(result, word)


def was_interrupted(result: Result, word: str) -> None:
    """A session that somebody ends is interrupted, and its cluster is not called broken."""
    told = json.loads((result.session / "verdict.json").read_text())
    assert told["verdict"] == "interrupted"
    assert told["reason"] == f"{word} ended the session: {len(DECLARED)} tests could not be judged"
    assert "# Cluster verdict: interrupted" in (result.session / "summary.md").read_text()
    assert result.suite["interrupted"] == word


@XDIST
def test_a_signal_while_tests_are_collected(declaring: UserFolder, distribution: str) -> None:
    """The report has all of them: the collection, which is slow here, goes on to its end."""
    declaring.test(f"import pathlib, time\npathlib.Path('collecting').touch()\ntime.sleep(2.0)\n{TESTS}")
    process = declaring.start("--cluster", "local", distribution, "--junitxml=mine.xml", *OURS)
    wait_until((declaring.path / "collecting").exists)
    process.send_signal(signal.SIGINT)
    result = declaring.finish(process, timeout_s=60)
    unjudged(result, declaring, "the session was ended by Ctrl-C before this test was judged")
    assert result.returncode == pytest.ExitCode.INTERRUPTED
    was_interrupted(result, "Ctrl-C")
    assert not (result.session / "runs").exists()


@XDIST
def test_the_time_of_the_session_is_over(declaring: UserFolder, distribution: str) -> None:
    seconds = "from pytest_llmbench.plugin import interruption\ninterruption._MINUTE_S = 8.0\n"
    (declaring.path / "conftest.py").write_text(seconds)
    limit = ("--llmbench-session-time", "1")
    result = declaring.run("--cluster", "local", distribution, "--junitxml=mine.xml", *limit, *OURS, timeout_s=90)
    unjudged(
        result, declaring, "session_ended|the session was ended by --llmbench-session-time 00:01:00 before this test"
    )
    assert all("--llmbench-session-time 00:01:00" in case.properties["reason"] for case in result.cases.values())
    assert result.returncode == pytest.ExitCode.INTERRUPTED
    was_interrupted(result, "--llmbench-session-time 00:01:00")
    assert " Interrupted by --llmbench-session-time 00:01:00: 4 ERROR" in write_page(result.session).read_text()
    problem = result.record("first")["problem"]
    assert problem["kind"] == "session_ended"
    assert problem["message"] == "the session ended before this run did: ended by --llmbench-session-time 00:01:00"


@pytest.fixture
def replaying(user: UserFolder) -> UserFolder:
    """Two runs whose logs are at hand, and two tests of each: they are judged at once."""
    for name in ("first", "second"):
        log_at_hand(user, name)
    user.env["PYTHONPATH"] = str(user.path)
    return user


REPLAY = ("--llmbench-replay", "logs", "--junitxml=mine.xml")
# How a session ends early, its exit code, and the reason of the tests that it left.
ENDS = {
    "-x": ("assert False", ["-x"], 1, "stopping after 1 failures"),
    "--maxfail": ("assert False", ["--maxfail=1"], 1, "stopping after 1 failures"),
    "pytest.exit": ("pytest.exit('enough', returncode=0)", [], 1, "enough"),
    "Ctrl-C": ("raise KeyboardInterrupt", [], 2, "Ctrl-C"),
    "--timeout": ("time.sleep(60)", ["--timeout=3", "--timeout-method=signal", "-x"], 1, "stopping after 1 failures"),
}
SELECTED = ["-k", "end or first or second or broken"]


@pytest.mark.parametrize("end", ENDS)
def test_a_session_that_ends_early(replaying: UserFolder, end: str) -> None:
    """What was not judged is an error that says why, and the session does not end well."""
    body, args, code, why = ENDS[end]
    replaying.test(f"import os, time\nimport pytest\n\ndef test_end():\n    {body}\n", "test_a.py")
    replaying.test(TESTS)
    result = replaying.run(*REPLAY, *args, *SELECTED, code=code)
    unjudged(result, replaying, why)


@XDIST
def test_a_broken_collection(replaying: UserFolder, distribution: str) -> None:
    """With `-x` nothing runs, though the broken file has nothing to do with the declared tests."""
    replaying.test(TESTS)
    replaying.test("import nothing_like_it\n", "test_z_broken.py")
    result = replaying.run(*REPLAY, "-x", distribution, *SELECTED, code=pytest.ExitCode.INTERRUPTED)
    unjudged(result, replaying, "1 error during collection|stopping after 1 failures")
    assert "test_z_broken" in " ".join(result.cases)


@pytest.mark.parametrize("restarts", ["0", "4"])
def test_a_worker_that_is_killed(replaying: UserFolder, restarts: str) -> None:
    replaying.test(TESTS.replace("assert run.record.steps", "os.kill(os.getpid(), 9)").replace("\n", "import os\n", 1))
    result = replaying.run(*REPLAY, "-n2", f"--max-worker-restart={restarts}", *SELECTED, code=1)
    cases = read_junit(replaying.path / "mine.xml")
    assert set(cases) == DECLARED
    ends = {name: (case.outcome, case.properties["verdict"], case.properties["run"]) for name, case in cases.items()}
    for run in ("first", "second"):
        assert ends[f"test_finite[{run}]"] == ("error", "ERROR", run)
    reasons = " ".join(case.properties.get("reason", "") for case in cases.values())
    assert "crashed while running" in reasons
    assert "unknown reason" not in reasons
    assert ("worker restarting disabled" in reasons) == (restarts == "0")
    assert not re.search(r"^—", result.text.partition("llmbench verdicts")[2], re.MULTILINE)


@XDIST
def test_an_internal_error(replaying: UserFolder, distribution: str) -> None:
    """A hook of another plugin breaks: every test without a verdict is an error."""
    replaying.test(
        "import pytest\n@pytest.hookimpl(wrapper=True)\ndef pytest_runtest_protocol(item):\n"
        "    yield\n    if item.name == 'test_finite[first]':\n        raise RuntimeError('broken hook')\n"
        "    return True\n",
        "conftest.py",
    )
    replaying.test(TESTS)
    result = replaying.run(*REPLAY, distribution, *SELECTED)
    assert result.returncode not in {0, 5}, result.text
    cases = {name: case for name, case in result.cases.items() if "[" in name}
    assert set(cases) == DECLARED
    assert {case.properties["verdict"] for case in cases.values()} == {"PASS", "ERROR"}
    assert all((case.outcome == "error") == (case.properties["verdict"] == "ERROR") for case in cases.values())
    assert any("internal error" in case.properties.get("reason", "") for case in cases.values())


@XDIST
def test_a_pass_without_its_number_is_an_error(replaying: UserFolder, distribution: str) -> None:
    """The session breaks between a test and its teardown, which would have noted the number that it passed with."""
    replaying.test(
        "import pytest\n@pytest.hookimpl(trylast=True)\ndef pytest_runtest_logreport(report):\n"
        "    if report.when == 'call' and report.nodeid.endswith('test_reference[first-learns]'):\n"
        "        raise RuntimeError('broken hook')\n",
        "conftest.py",
    )
    replaying.test(TESTS)
    result = replaying.run(*REPLAY, distribution, *SELECTED)
    assert result.returncode not in {0, 5}, result.text
    case = result.cases["test_reference[first-learns]"]
    assert (case.outcome, case.properties["verdict"]) == ("error", "ERROR"), result.text
    assert "it had passed, but its number was not recorded" in case.properties["reason"]


def test_a_plugin_that_swallows_tests(replaying: UserFolder) -> None:
    """Nothing is reported of them, and pytest itself sees no fault: the session does not end well."""
    replaying.test("def pytest_runtest_protocol(item):\n    return True\n", "conftest.py")
    replaying.test(TESTS)
    result = replaying.run(*REPLAY, *SELECTED, code=1)
    unjudged(result, replaying, "unknown reason")


@pytest.mark.parametrize("end", ["SIGKILL", "--timeout"])
def test_a_process_that_is_killed(declaring: UserFolder, watch: type[Watch], end: str) -> None:
    """No process is left to write, so the XML was there before the end, and it is this session's."""
    (declaring.path / "mine.xml").write_text("<testsuites/>")
    limit = ["--timeout=15", "--timeout-method=thread"] if end == "--timeout" else []
    args = ["-o", "llmbench_heartbeat_timeout=15", *limit]
    process = declaring.start("--cluster", "local", *args, "--junitxml=mine.xml", *OURS)
    declaring.wait_for(lambda session: watch.steps(session, "first") > 2)
    if end == "SIGKILL":
        process.kill()
    result = declaring.finish(process, timeout_s=60)
    unjudged(result, declaring, "no verdict yet")


def test_impatience(declaring: UserFolder, watch: type[Watch]) -> None:
    process = declaring.start("--cluster", "local", "--junitxml=mine.xml", *OURS)
    declaring.wait_for(lambda session: watch.steps(session, "first") > 2)
    for _ in range(4):
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)
    unjudged(declaring.finish(process, timeout_s=60), declaring, "session_ended|ended by Ctrl-C")


def test_a_terminal_that_is_closed(declaring: UserFolder, watch: type[Watch]) -> None:
    """SIGHUP comes with it, and from then on each write to the terminal fails."""
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        declaring.command("--cluster", "local", "--junitxml=mine.xml", *OURS), cwd=declaring.path,
        env=declaring.environment, stdin=terminal, stdout=terminal, stderr=terminal,
    )  # fmt: skip
    os.close(terminal)
    reader = threading.Thread(target=read_all, args=(controller,), daemon=True)
    reader.start()
    session = declaring.wait_for(lambda session: watch.steps(session, "first") > 2 and session)
    process.send_signal(signal.SIGSTOP)  # so that the terminal is gone before anybody can react to it
    os.kill(process.pid, signal.SIGHUP)
    os.close(controller)
    process.send_signal(signal.SIGCONT)
    assert process.wait(60) == pytest.ExitCode.INTERRUPTED
    unjudged(Result(process.returncode, "", session), declaring, "session_ended|ended by SIGHUP")


def read_all(controller: int) -> None:
    """Read what a program prints, as a terminal does, until there is no more."""
    with contextlib.suppress(OSError):
        while os.read(controller, 4096):
            pass


def test_a_signal_in_a_hook_of_others(declaring: UserFolder, watch: type[Watch]) -> None:
    """Raised there, the signal would be an internal error of pytest, so it waits until the hook is over."""
    declaring.test(
        "import time\nimport pytest\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_setup(item):\n"
        "    open('in_hook', 'w').close()\n    for _ in range(80):\n        time.sleep(0.05)\n    yield\n",
        "conftest.py",
    )
    process = declaring.start("--cluster", "local", "--junitxml=mine.xml", *OURS)
    declaring.wait_for(lambda session: watch.steps(session, "first") > 2 or (declaring.path / "in_hook").exists())
    process.send_signal(signal.SIGTERM)
    result = declaring.finish(process, timeout_s=60, code=pytest.ExitCode.INTERRUPTED)
    unjudged(result, declaring, "session_ended|ended by SIGTERM")
