"""Runs on one machine: one after the other, also from two sessions, and with a start that is slow or breaks."""

import os
import re
import signal
import time

import pytest

from pytest_llmbench.session.journal.journal import read_journal
from tests.conftest import ASLEEP, UserFolder, pid_of_rank, read_junit, steps_logged
from tests.support.waiting import wait_until

FAST = """
import pytest
from pytest_llmbench import Quantity

@pytest.mark.recipe("first")
def test_too_fast(run):
    assert run.throughput >= Quantity("900M words/s")

@pytest.mark.recipe("second")
def test_any(run):
    assert run.throughput >= Quantity("1 words/s")
"""


def test_two_recipes_take_turns(user: UserFolder) -> None:
    """This machine is one node, whatever llmbench_max_runs allows: the second starts when the first is over."""
    user.recipe("first")
    user.recipe("second")
    user.test(FAST)
    result = user.run("--cluster", "local", "-n2", "-o", "llmbench_max_runs=2")
    assert {case.properties["verdict"] for case in result.cases.values()} == {"PASS", "FAIL"}
    timings = sorted((result.record(key)["timings"] for key in ("first", "second")), key=lambda t: t["submitted"])
    assert timings[0]["ended"] <= timings[1]["submitted"]


def test_the_first_failure_ends_the_session(user: UserFolder) -> None:
    """With -x, a run that nobody will judge any more is ended, and its record says so; the session can be resumed."""
    user.recipe("first")
    user.recipe("second", steps=100_000, options=ASLEEP)
    user.test(FAST)
    result = user.run("--cluster", "local", "-n0", "-x", code=pytest.ExitCode.TESTS_FAILED)
    assert [case.properties["verdict"] for case in result.cases.values()] == ["FAIL", "ERROR"]
    problem = result.record("second")["problem"]
    assert (problem["kind"], problem["message"]) == ("session_ended", "the session ended before this run did")
    assert "ended" not in {event.event for event in read_journal(result.session / "journal")[0]}


def test_the_second_session_waits_for_the_first(user: UserFolder) -> None:
    """Two sessions that share this machine's lock do not measure at once, and the waiting one says why."""
    user.recipe()
    user.recipe("long", steps=1_000_000, options=ASLEEP)
    first = user.start("--cluster", "local", "-n0", "-k", "long", "--llmbench-run-dir", "first")
    try:
        wait_until(lambda: list(user.path.glob("first/*/runs/long/steps/rank-00000.jsonl")))
        second = user.start("--cluster", "local", "-n0", "-k", "tiny")
        wait_until(lambda: list(user.path.glob("reports/*/owner")))
        time.sleep(2.0)
        assert second.poll() is None
        assert not list(user.path.glob("reports/*/runs"))
    finally:
        first.terminate()
        text, _ = first.communicate(timeout=300)
    assert first.returncode == pytest.ExitCode.INTERRUPTED, text
    assert "another session measures on this machine" in user.finish(second, code=0).text


def test_in_this_process(user: UserFolder) -> None:
    """`--cluster debug`: one rank in pytest itself, with the same verdicts."""
    user.recipe()
    result = user.run("--cluster", "debug", "-n0", "-k", "tiny", code=0)
    assert result.case.properties["verdict"] == "PASS"
    record = result.record()
    assert (record["cluster"], record["ranks"]) == ("debug", 1)
    assert record["command"].startswith("in this process: ")
    assert record["job_id"] == str(record["rank_info"][0]["pid"])


def test_a_session_waits_for_ranks_that_a_killed_session_left(user: UserFolder) -> None:
    """Ranks left behind would take half of the machine from the next measurement; nothing starts before they end."""
    user.recipe("endless", steps=100_000, options=ASLEEP)
    user.recipe("tiny")
    first = user.start("--cluster", "local", "-n0", "-k", "endless")
    killed = user.wait_for(lambda session: session if steps_logged(session, "endless") > 1 else None)
    orphans = [pid_of_rank(killed, "endless", rank) for rank in range(2)]
    for orphan in orphans:
        os.kill(orphan, signal.SIGSTOP)  # else they may end themselves before the second session has begun
    first.kill()
    first.wait()  # and not until its pipe is closed: who started the orphans may have it
    assert first.stdout is not None
    first.stdout.close()
    second = user.start("--cluster", "local", "-n0", "-k", "tiny", "--llmbench-run-dir", "second")
    wait_until(lambda: list(user.path.glob("second/*/owner")))
    time.sleep(2.0)
    assert not list(user.path.glob("second/*/runs"))
    for orphan in orphans:
        os.kill(orphan, signal.SIGKILL)
    text, _ = second.communicate(timeout=300)
    assert second.returncode == 0, text
    (waiting,) = re.findall(r"ranks of a session that was killed still run on this machine \(process (.*?)\)", text)
    assert {int(pid) for pid in waiting.split(",")} == set(orphans)


def test_folders_of_sessions_have_no_tests(user: UserFolder) -> None:
    """A session may have thousands of runs; a folder that only has such a name is any other."""
    session, other = (user.path / "reports" / name for name in ("20260101-000000-abcdef", "20260102-000000-b"))
    for folder in (session, other):
        folder.mkdir(parents=True)
        (folder / f"test_in_{folder.name[:8]}.py").write_text("def test_any(): pass\n")
    (session / "journal").touch()
    result = user.run("-n0", "-v", timeout_s=60)
    assert "1 passed" in result.text
    assert "test_in_20260102.py" in result.text


def test_runs_start_once_though_a_worker_is_fast(user: UserFolder) -> None:
    """A worker may have planned the runs, and the thread may start them, before the controller's loop begins."""
    user.recipe(options=ASLEEP)
    (user.path / "conftest.py").write_text(
        "import functools, time\n"
        "from pytest_llmbench.plugin.xdist import Controller\n"
        "start = Controller.pytest_runtestloop\n"
        "@functools.wraps(start)\n"
        "def start_and_wait(self, *args, **more):\n"
        "    answer = start(self, *args, **more)\n"
        "    deadline = time.monotonic() + 30\n"
        "    while self._bench.planned.empty and time.monotonic() < deadline:\n"
        "        time.sleep(0.01)\n"
        "    return answer\n"
        "Controller.pytest_runtestloop = start_and_wait\n"
    )
    result = user.run("--cluster", "local", "-n2", "-k", "tiny", code=0)
    events, _ = read_journal(result.session / "journal")
    assert [event.event for event in events].count("began") == 1


BROKEN = """
import time
from pathlib import Path
from pytest_llmbench.cluster import executors

load = executors.load

def broken():
    {how}
    load()

executors.load = broken
"""
BREAKS = "raise RuntimeError('no more threads')"
# The second worker is ready only when the session ends: no worker gets a test.
LATE_WORKER = """
import pytest
from pytest_llmbench.cluster.heartbeat import read_stop

@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session):
    told = getattr(session.config, "workerinput", {"workerid": ""})
    while told["workerid"] == "gw1" and read_stop(Path(told["llmbench"]["folder"])) is None:
        time.sleep(0.1)
"""
# Tests that wait get the reason, however late it comes.
WAITING_TESTS = """
from pytest_llmbench.plugin.xdist import Controller

give_up = Controller._give_up

def give_up_late(self, why):
    time.sleep(1)
    give_up(self, why)

Controller._give_up = give_up_late

def pytest_runtest_setup():
    Path("waiting").touch()
"""
# How the start breaks, what else the plugin does, and how many of the tests may be given to workers.
ORDERS = {
    "before any test is given to a worker": (BREAKS, LATE_WORKER, {0}),
    "while tests wait": (f"while not Path('waiting').exists(): time.sleep(0.1)\n    {BREAKS}", WAITING_TESTS, {4}),
    "at once": (BREAKS, "", range(7)),
}
TWO_PLAIN = "def test_plain():\n    assert False\n\ndef test_other():\n    assert False\n"


@pytest.fixture
def started(user: UserFolder) -> UserFolder:
    """A user's folder with a run to start, and a place for a plugin that is loaded first."""
    user.recipe()
    user.test()
    user.env["PYTHONPATH"] = str(user.path)
    return user


def test_a_session_that_ends_while_its_runs_start(started: UserFolder) -> None:
    """`-x` after two tests of the user's own: the run gets its record all the same, and nothing breaks."""
    started.test(BROKEN.format(how="time.sleep(4)"), "slow_start.py")
    started.test(TWO_PLAIN, "test_first.py")
    result = started.run("-p", "slow_start", "--cluster", "local", "-n2", "-x", "-k", "plain or other or tiny")
    assert "stopping after" in result.text
    assert "Traceback" not in result.text
    assert "INTERNALERROR" not in result.text
    assert "ERROR test_user.py::test_reference[tiny-learns] - the session ended" in result.text
    problem = result.record()["problem"]
    assert (problem["kind"], problem["message"]) == ("session_ended", "the session ended before this run did")


@pytest.mark.parametrize("order", ORDERS)
def test_a_start_that_breaks_is_an_error_of_every_test(started: UserFolder, order: str) -> None:
    """The workers do not wait for a record that never comes; the XML files and the terminal name every test."""
    how, more, given = ORDERS[order]
    runs = ["tiny", "second", "third"]
    for name in runs[1:]:
        started.recipe(name)
    started.test("def test_finite(run):\n    assert run.record.steps\n", "test_more.py")
    started.test(BROKEN.format(how=how) + more, "no_start.py")
    result = started.run(
        "-p", "no_start", "--cluster", "local", "-n2", "-k", " or ".join(runs), "--junitxml=mine.xml"
    )  # fmt: skip
    why = "the runs could not be started: RuntimeError: no more threads"
    assert result.returncode == pytest.ExitCode.INTERRUPTED, result.text
    assert result.text.count("Traceback") == 1  # one for who mends it, not one per test
    assert "INTERNALERROR" not in result.text
    assert f"llmbench: {why}" in result.text
    assert not list((result.session / "runs").glob("*"))
    declared = {f"test_user.py::test_reference[{name}-learns]" for name in runs}
    declared |= {f"test_more.py::test_finite[{name}]" for name in runs}
    assert read_junit(started.path / "mine.xml", result.session) == result.cases
    assert result.session.joinpath("junit.xml").read_text().count("<testcase") == len(declared)
    assert set(result.cases) == {test.partition("::")[2] for test in declared}
    for case in result.cases.values():
        assert (case.outcome, case.properties["verdict"]) == ("error", "ERROR")
        assert why in case.properties["reason"]
    waited = [case for case in result.cases.values() if "the controller left no record" in case.properties["reason"]]
    assert len(waited) in given, result.text
    assert set(re.findall(r"^ERROR (\S+) - ", result.text, re.MULTILINE)) == declared
    assert f"= {len(declared)} errors in " in result.text
