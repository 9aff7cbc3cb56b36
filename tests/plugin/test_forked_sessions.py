"""Sessions that the tests fork from a Python which has started before: they are as those of a new Python."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ASLEEP, Result, UserFolder, pid_of_rank, steps_logged
from tests.support.waiting import wait_until
from tests.support.warm import asking

# State of Python that a session may see. The order of modules and the set of imported ones may differ.
LOOK = """
import json, logging, os, signal, sys, tempfile, threading, warnings

def test_look():
    seen = {
        "argv": sys.argv, "path": sys.path, "cwd": os.getcwd(), "environment": dict(os.environ),
        "temporary": tempfile.gettempdir(), "main": sys.modules["__main__"].__name__, "executable": sys.executable,
        "threads": [thread.name for thread in threading.enumerate()], "handlers": len(logging.getLogger().handlers),
        "signals": [str(signal.getsignal(number)).split(" at ")[0] for number in (2, 13, 15, 17)],
        "streams": [(stream.encoding, stream.errors) for stream in (sys.__stdin__, sys.__stdout__, sys.__stderr__)],
        "filters": len(warnings.filters), "meta_path": len(sys.meta_path),
        "descriptors": sorted(os.listdir("/proc/self/fd"), key=int)[:3],
    }
    with open(os.environ["SEEN"] + os.environ.get("PYTEST_XDIST_WORKER", ""), "w") as file:
        json.dump(seen, file)
"""


def seen(user: UserFolder, name: str, result: Result) -> dict[str, object]:
    assert result.returncode == 0, result.text
    told: dict[str, object] = json.loads((user.path / name).read_text())
    return told


def same(told: dict[str, object]) -> dict[str, object]:
    environment = told["environment"]
    assert isinstance(environment, dict)
    loose = ("SEEN", "PYTEST_XDIST_TESTRUNUID", "PYTEST_CURRENT_TEST")
    return {**told, "environment": {k: v for k, v in environment.items() if k not in loose}}


@pytest.mark.parametrize("args", [(), ("-n1",)], ids=["session", "worker"])
def test_a_forked_session_is_as_one_of_a_new_python(user: UserFolder, args: tuple[str, ...]) -> None:
    """Arguments, paths, environment, folder, streams and signals are the asker's."""
    user.test(LOOK)
    worker = "gw0" if args else ""
    user.env["SEEN"] = "forked"
    forked = seen(user, f"forked{worker}", user.run(*args))
    user.env["SEEN"] = "new"
    new = seen(user, f"new{worker}", user.run_new(*args))
    assert same(forked) == same(new)


def test_forked_ranks_are_as_those_of_a_new_python(user: UserFolder) -> None:
    """What ranks find out about themselves does not differ, and those of a forked session are forked.

    Nobody would see it otherwise if they no longer were, but for tests that take twice the time.
    """
    user.recipe(steps=1000, options=ASLEEP)
    process = user.start("--cluster", "local")
    session = user.wait_for(lambda session: steps_logged(session) > 1 and session)
    controller = json.loads((session / "runs" / "tiny" / "job.json").read_text())["job_id"]
    for pid in (pid_of_rank(session, "tiny", 0), int(controller)):
        assert b"serving.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    process.send_signal(signal.SIGINT)
    user.finish(process)
    user.recipe()
    forked, new = (run("--cluster", "local").record()["rank_info"] for run in (user.run, user.run_new))
    own = {"pid", "token", "started", "finished", "steps"}
    for a, b in zip(forked, new, strict=True):
        assert {name for name in a | b if a.get(name) != b.get(name)} <= own


def test_what_has_the_name_of_an_imported_module_has_a_new_python(user: UserFolder) -> None:
    """A user's own module is never taken for the one that is imported already."""
    user.env["SEEN"] = "seen"
    user.test("import yaml\n\ndef test_own():\n    assert yaml.OWN\n")
    (user.path / "yaml.py").write_text("OWN = True\n")
    user.run("-p", "no:llmbench", "-c", "/dev/null", "--rootdir", str(user.path), "test_user.py", code=0)
    with (user.path / "output").open("w") as output, pytest.raises(asking.RefusedError):
        asking.Forked(["pytest", "test_user.py"], user.path, user.environment, output)


def test_a_session_ends_with_who_asked_for_it(user: UserFolder) -> None:
    user.test(
        "import os, time\n\ndef test_wait():\n    open('pid', 'w').write(str(os.getpid()))\n    time.sleep(300)\n"
    )
    stand_in = subprocess.Popen(
        [asking.script(user.path / "bin") / "pytest", *user.command()[3:]], cwd=user.path, env=user.environment
    )
    pid = user.path / "pid"
    try:
        wait_until(lambda: pid.exists() and pid.read_text())
    finally:
        stand_in.kill()
        stand_in.wait()
    wait_until(lambda: not Path(f"/proc/{pid.read_text()}").exists())


def test_a_signal_and_an_exit_status_arrive(user: UserFolder) -> None:
    user.test("import os\n\ndef test_end():\n    os.kill(os.getpid(), 9)\n")
    script = asking.script(user.path / "bin") / "pytest"
    done = subprocess.run([script, "-p", "no:xdist"], cwd=user.path, env=user.environment, check=False)
    assert done.returncode == -signal.SIGKILL
    done = subprocess.run([script, "--version"], cwd=user.path, env=user.environment, check=False, capture_output=True)
    assert (done.returncode, b"pytest" in done.stdout) == (0, True)
    assert sys.executable in script.read_text()
