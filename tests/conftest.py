"""A folder like a user's: its own recipes and tests, and pytest run in it as a process of its own."""

import fcntl
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from xml.etree import ElementTree as ET

import pytest
import yaml

from pytest_llmbench.core import extensions
from pytest_llmbench.engines.base import ENGINES
from tests.support.warm import asking as warm_pytest
from tests.support.warm.serving import remember_yaml

Known = TypeVar("Known")

# A real training, as small as it can be and still learn, by an engine of another package that needs no PyTorch.
TINY: Mapping[str, Any] = {
    "engine": "unigram", "nodes": 1, "gpus_per_node": 0,
    "model": {"layers": 1, "hidden_size": 32, "attention_heads": 2, "vocab_size": 128, "dropout": 0.0},
    "sequence_length": 32, "global_batch_size": 8, "micro_batch_size": 2, "precision": "fp32", "compile": False,
    "optimizer": {"learning_rate": 1.0e-2, "warmup_steps": 2}, "steps": 8,
    "warm_up": {"rule": "skip_first", "steps": 2}, "time_limit": "00:05:00",
    "references": [
        {
            "name": "learns", "statistic": "loss_drop", "at_least": "0.01 nat", "why": "it must learn",
            "source": "this test", "date": "2026-01-01",
        }
    ],
}  # fmt: skip

# The same by PyTorch, for what only an engine of ours shows: seconds of CPU time a rank.
TORCH: Mapping[str, Any] = {"engine": "torch"}

# Its options for a training that waits for what is done to it: it leaves the machine to others.
ASLEEP: Mapping[str, Any] = {"step_s": 0.1}

# Packages of others that every user has installed.
INSTALLED = Path(__file__).parent / "installed"

# Commands of a Slurm that does not answer.
SILENT_SLURM = Path(__file__).parent / "support" / "silent_slurm"

# More ranks than cores: threads that wait by spinning take the cores from those they wait for, and a training of
# seconds takes minutes. Read when PyTorch is imported, here and in all that the tests start.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # This test suite runs in the background of a shell: what it starts must not inherit that, as tests send SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # started by nohup; tests send SIGHUP as well

# Variables of the shell that runs these tests. With CI set, pytest keeps its summary long, and prints messages twice.
NOT_THE_USERS = ("PYTEST_", "COV_", "LLMBENCH_", "CI", "BUILD_NUMBER", "GITHUB_", "GITLAB_")

TEST_REFERENCES = """
def test_reference(run, reference):
    assert run.measured(reference.statistic) in reference
"""


def pytest_configure(config: pytest.Config) -> None:
    """Fork many workers from a Python that has imported the tests: each would take ten seconds of CPU time for it."""
    if len(getattr(config.option, "tx", None) or ()) >= 4 and not hasattr(config, "workerinput"):
        warm_pytest.fork_workers(config.args)
    remember_yaml()


def pytest_collection_finish() -> None:
    """Let the garbage collector leave alone what was collected and imported: each look at it takes half a second.

    The tests of options have pytest look twice for every configuration that they make in this process.
    """
    gc.collect()
    gc.freeze()


@dataclass(frozen=True)
class Case:
    """One JUnit test case."""

    name: str
    outcome: str
    message: str
    properties: Mapping[str, str]


@dataclass(frozen=True)
class Result:
    """What one pytest session left behind."""

    returncode: int
    text: str
    found: Path | None

    @property
    def session(self) -> Path:
        """The session's folder, which must be there."""
        assert self.found is not None, self.text
        return self.found

    @property
    def cases(self) -> dict[str, Case]:
        """JUnit test cases by name, from the session's folder."""
        return read_junit(self.session / "junit.xml")

    @property
    def case(self) -> Case:
        (case,) = self.cases.values()
        return case

    @property
    def error(self) -> str:
        """The message of the only test, which must be an error and leave no metric behind."""
        assert self.returncode != 0, self.text
        assert self.case.outcome == "error", self.text
        assert self.case.properties["verdict"] == "ERROR"
        assert "value" not in self.case.properties
        assert self.record()["metrics"] == {}
        return self.case.message

    @property
    def suite(self) -> dict[str, str]:
        """Properties of the whole session in its JUnit file."""
        found = ET.parse(self.session / "junit.xml").iterfind("testsuite/properties/property")
        return {each.get("name", ""): each.get("value", "") for each in found}

    def record(self, key: str = "tiny") -> dict[str, Any]:
        record: dict[str, Any] = json.loads((self.session / "runs" / key / "record.json").read_text())
        return record


def read_junit(path: Path, session: Path | None = None) -> dict[str, Case]:
    """Read a JUnit file: name of a test to its outcome (passed, failure, error, skipped), message and properties.

    `verdicts.json` of the session, by default beside it, has all properties; the XML has the most wanted.
    """
    cases, verdicts = {}, (session or path.parent) / "verdicts.json"
    rows = json.loads(verdicts.read_text())["tests"] if verdicts.exists() else []
    whole = {
        row["test"].partition("::")[2]: {name: str(value) for name, value in row.items() if value is not None}
        for row in rows
    }
    for element in ET.parse(path).iter("testcase"):
        ends = [child for child in element if child.tag in {"failure", "error", "skipped"}]
        of_pytest = element.get("name") == "internal"  # pytest itself may break down more than once
        assert len(ends) <= 1 or of_pytest, f"{element.get('name')} ends in more than one way"
        properties = {p.get("name", ""): p.get("value", "") for p in element.iter("property")}
        # Prefer the node id: the name of a case has the node instead of its slot.
        name = properties.get("test", f"::{element.get('name', '')}").partition("::")[2]
        properties = whole.get(name, {}) | properties
        cases[name] = Case(
            name=name,
            outcome=ends[0].tag if ends else "passed",
            message=(ends[0].get("message", "") + "\n" + (ends[0].text or "")) if ends else "",
            properties=properties,
        )
    return cases


# Pytest as users have it, but for plugins that take a tenth of a second to start, and the report, which takes one:
# tests of the report ask for it, and the documents have it as users do.
PYTEST = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:anyio"]
WITHOUT_REPORT = ("-o", "llmbench_report=no")

Started = subprocess.Popen[str] | warm_pytest.Forked

# Plugins of others that would be in the way of every other test: see the Makefile.
GUESTS = Path(sys.prefix) / "guests"


@dataclass
class UserFolder:
    """A user's folder with an ini file, recipes and tests: where none is written, that of all references."""

    pytester: pytest.Pytester
    path: Path
    env: dict[str, str] = field(default_factory=dict)
    started: list[Started] = field(default_factory=list)

    def recipe(self, name: str = "tiny", **changes: Any) -> None:
        """Write a recipe of its own file: the tiny one with changes."""
        recipe = {**TINY, **changes}
        (self.path / "recipes").mkdir(exist_ok=True)
        text = yaml.safe_dump({"family": name, "recipes": {name: recipe}})
        (self.path / "recipes" / f"{name}.yaml").write_text(text)

    def test(self, source: str = TEST_REFERENCES, name: str = "test_user.py") -> None:
        (self.path / name).write_text(source)

    def have_tests(self) -> None:
        """Write the test of all references where the user has none."""
        if not any(self.path.glob("test_*.py")):
            self.test()

    def command(self, *args: str) -> list[str]:
        """The pytest command of this folder; plugins of no interest to the user are left out."""
        self.have_tests()
        return [*PYTEST, *(() if "no:llmbench" in args else WITHOUT_REPORT), *args]

    def start(self, *args: str) -> Started:
        """Start pytest and return at once, forked from a Python that has started before if it can do with that."""
        process = warm_pytest.start(self.command(*args), cwd=self.path, environment=self.environment)
        self.started.append(process)
        return process

    def run(self, *args: str, timeout_s: float = 600.0, code: int | None = None) -> Result:
        """Run pytest to its end, which has to be with this exit code, as `start` does."""
        environment = self.environment
        if "--plan" in args and "PATH" not in self.env:  # it asks Slurm, and is for machines that tests have not
            environment = {**environment, "PATH": f"{SILENT_SLURM}:{environment['PATH']}"}
        done = warm_pytest.run(self.command(*args), cwd=self.path, environment=environment, timeout_s=timeout_s)
        return self._ended(done.returncode, done.stdout, code)

    def run_here(self, *args: str, code: int | None = None) -> Result:
        """Run pytest in this process, where that is enough: nothing of it runs in another one."""
        without = ("benchmark", "cov", *(() if any(arg.startswith("-n") for arg in args) else ("xdist",)))
        self.have_tests()
        options = (*PYTEST[3:], *(f"-pno:{name}" for name in without), *WITHOUT_REPORT)
        done = self.pytester.runpytest_inprocess(*options, *args)
        return self._ended(int(done.ret), f"{done.stdout.str()}\n{done.stderr.str()}", code)

    def run_new(self, *args: str, code: int | None = None) -> Result:
        done = subprocess.run(
            self.command(*args), cwd=self.path, env=self.environment, text=True, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        return self._ended(done.returncode, done.stdout, code)

    def finish(self, process: Started, timeout_s: float = 600.0, code: int | None = None) -> Result:
        text, _ = process.communicate(timeout=timeout_s)
        return self._ended(process.returncode, text, code)

    def _ended(self, returncode: int, text: str, code: int | None) -> Result:
        assert code is None or returncode == code, text
        return Result(returncode, text, self.session)

    def invite(self, module: str) -> None:
        """Have a plugin of others beside ours, for real."""
        if not any(GUESTS.glob(f"{module}*")):
            pytest.skip(f"no {module} in {GUESTS}: make {GUESTS.parent.name}/.dev")
        self.env["PYTHONPATH"] = str(GUESTS)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of pytest: nothing of the test session that runs us, nor of a CI."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith(NOT_THE_USERS)}
        # A lock of its own, so that two tests of this suite may measure at once.
        path = ":".join([str(INSTALLED), *filter(None, [self.env.get("PYTHONPATH")])])
        return {**clean, "TMPDIR": str(self.path), "PYTHONWARNINGS": "", **self.env, "PYTHONPATH": path}

    @property
    def session(self) -> Path | None:
        """The newest session's folder, None when none was made."""
        return max((self.path / "reports").glob("*-*"), default=None)

    def wait_for(self, ready: Callable[[Path], object], timeout_s: float = 300.0) -> Any:
        """Wait until `ready(session folder)` is true, and return it. On Slurm, other tests may have the nodes first."""
        deadline, waited_for = time.monotonic() + timeout_s, self._running
        while time.monotonic() < deadline:
            session = self.session
            found = ready(session) if session is not None else None
            if found:
                return found
            if waited_for and not self._running:  # nothing more will come, but for ranks that end themselves
                deadline, waited_for = min(deadline, time.monotonic() + 30.0), False
            time.sleep(0.05)
        pytest.fail(f"{ready} did not come true within {timeout_s:g} s, or 30 s after pytest had ended")

    @property
    def _running(self) -> bool:
        return any(process.poll() is None for process in self.started)


@pytest.fixture
def unigram(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have this process, and Pythons that it starts, know the engine of `TINY` as the users' do."""
    monkeypatch.syspath_prepend(str(INSTALLED))
    monkeypatch.setenv("PYTHONPATH", str(INSTALLED))
    _forget_engines()  # this process may have looked already
    yield
    _forget_engines()


def _forget_engines() -> None:
    extensions._entry_points.cache_clear()
    vars(ENGINES).pop("_installed", None)


@pytest.fixture
def user(pytester: pytest.Pytester, unigram: None) -> Iterator[UserFolder]:
    """An empty user's folder whose own recipes are the only ones of interest."""
    (pytester.path / "recipes").mkdir()
    (pytester.path / "pytest.ini").write_text(
        "[pytest]\nstrict = true\nfilterwarnings = error\nllmbench_recipes = recipes\nllmbench_gpus_per_node = 0\n"
        "llmbench_require_verdict = no\n"
    )
    folder = UserFolder(pytester=pytester, path=pytester.path)
    yield folder
    for process in folder.started:  # of a test that failed: its ranks would keep the machine busy for all others
        if process.poll() is None:
            process.terminate()
            process.communicate()


def trained_in(folder: Path, *args: str) -> Path:
    """Run pytest in a user's folder that many tests share, which has to pass; return the folder."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(NOT_THE_USERS)}
    done = warm_pytest.run(
        [*PYTEST, *WITHOUT_REPORT, "-k", "tiny", *args], cwd=folder, timeout_s=600,
        environment={**clean, "TMPDIR": str(folder), "PYTHONPATH": str(INSTALLED)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return folder


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder `name` that `make` has filled, for all workers: the tests of a module may be on several of them."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    with folder.with_name(f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (whole := folder.with_name(f"{name}.whole")).exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a worker that failed
            folder.mkdir()
            make(folder)
            whole.touch()
    return folder


def steps_logged(session: Path, run: str = "tiny", rank: int = 0) -> int:
    log = session / "runs" / run / "steps" / f"rank-{rank:05d}.jsonl"
    return log.read_text().count('"step":') if log.exists() else 0


def pid_of_rank(session: Path, run: str, rank: int) -> int:
    log = session / "runs" / run / "steps" / f"rank-{rank:05d}.jsonl"
    return int(json.loads(log.read_text().splitlines()[0])["pid"])


class Watch:
    """Looking at a run under way."""

    steps = staticmethod(steps_logged)
    pid = staticmethod(pid_of_rank)


@pytest.fixture
def watch() -> type[Watch]:
    return Watch


def require_slurm() -> None:
    """Skip without a Slurm that answers; fail where it has to be there."""
    answers = False
    if shutil.which("scontrol"):
        ping = subprocess.run(["scontrol", "ping"], capture_output=True, text=True, check=False)
        answers = " is UP" in ping.stdout
    if answers:
        return
    #: test variable LLMBENCH_REQUIRE_SLURM: a missing Slurm is a failure, not a skip
    if os.environ.get("LLMBENCH_REQUIRE_SLURM"):
        pytest.fail("no Slurm answers, and LLMBENCH_REQUIRE_SLURM is set: see tools/slurm/up.sh", pytrace=False)
    pytest.skip("no Slurm answers here; as root on Debian: make slurm-up")


@contextmanager
def slurm_nodes(*, alone: bool = False) -> Iterator[None]:
    """Hold Slurm's nodes: together with other tests, or `alone`, for what no other test could bear beside it."""
    folder = Path(tempfile.gettempdir())
    with (
        (folder / "llmbench-slurm-turn.lock").open("w") as turn,
        (folder / "llmbench-slurm-nodes.lock").open("w") as lock,
    ):
        # A test that waits for all nodes holds the turn: others would share them without a gap until the very end.
        fcntl.flock(turn, fcntl.LOCK_EX)
        fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(turn, fcntl.LOCK_UN)
        yield


def known(value: Known | None) -> Known:
    assert value is not None
    return value
