"""A real Slurm, brought up by `make slurm-up`: without one these tests skip, or fail where it is required."""

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_llmbench.cluster.slurm.commands import clean_environment
from tests.conftest import UserFolder, require_slurm, slurm_nodes

HERE = Path(__file__).parent
UNIT = HERE.parent / "unit"
RANKS = UNIT / "workloads"
TOOLS = HERE.parents[1] / "tools" / "slurm"
UP = TOOLS / "up.sh"
OWN = {"slurm", "gpu_slurm"}  # fixtures that bring up a Slurm of their own
# Files with tests that take a minute, most of it waiting: begun last, they would leave the machine idle at the end.
LONG = ("test_wheel.py", "test_documents.py", "test_ranks.py", "test_disks.py", "test_commands.py", "test_build.py",
        "test_speed_judged.py", "test_validation.py")  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder, and give each worker of pytest-xdist its part of those that take long.

    Slurm's tests wait for the same eight nodes, and most of their time for Slurm, so five workers begin with them while
    the others compute. Those that break nodes have a second Slurm, on the first worker; those that bring up a Slurm for
    themselves alone share its ports, and are on the fifth. Ranks that train are
    forked from a process that has imported the frameworks, which takes ten seconds: the last worker begins with their
    tests, so that hardly another one has to make such a process. The workers that are left begin with sessions of
    pytest. The short unit tests come last, where workers that are done take them from others.
    """
    parents = {path: set(path.parents) for path in {item.path for item in items}}  # there are ten tests a file
    ours = sorted((item for item in items if HERE in parents[item.path]), key=lambda item: item.path.name not in LONG)
    ranks = [item for item in items if RANKS in parents[item.path]]
    for item in ours:
        item.add_marker(pytest.mark.slurm)
    alone = [item for item in ours if item.get_closest_marker("breaks_nodes")]
    own = [item for item in ours if OWN & set(getattr(item, "fixturenames", ()))]
    taken = {id(item) for item in (*alone, *own)}
    together = [item for item in ours if id(item) not in taken]
    few = len(together) // 8
    shares = {0: [*alone, *together[:few]], **{n: together[few + n - 1 :: 3] for n in (1, 2, 3)}, 4: own}
    sessions = sorted(
        (item for item in items if not {HERE, UNIT} & parents[item.path]), key=lambda item: item.path.name not in LONG
    )
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    each = len(items) // workers  # tests that a worker is given at first
    if free := range(len(shares), workers - 1):
        worker_of = {path: free[n % len(free)] for n, path in enumerate(dict.fromkeys(item.path for item in sessions))}
        shares |= {n: [item for item in sessions if worker_of[item.path] == n] for n in free}
        shares[workers - 1] = ranks
    if not free or not ours or not ranks or max(map(len, shares.values())) > each:
        items[:] = [*ours, *(item for item in items if HERE not in parents[item.path])]
        return
    taken = {id(item) for share in shares.values() for item in share}
    others = [item for item in items if id(item) not in taken]
    items[:] = []
    for worker in range(workers):
        share = shares.get(worker, [])
        items += [*share, *others[: each - len(share)]]
        del others[: each - len(share)]
    items += others


def run_slurm(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=clean_environment())
    return done.stdout


@pytest.fixture(scope="session", autouse=True)
def slurm_is_up() -> None:
    """Skip without a Slurm that answers; in CI, where it must be there, fail."""
    require_slurm()


@pytest.fixture(autouse=True)
def nodes(request: pytest.FixtureRequest, slurm_is_up: None) -> Iterator[None]:
    """The nodes, all in service: a test that breaks one has them alone and leaves them mended, and none leaves a job.

    A test with a Slurm of its own leaves them to others, and does not wait for them. All that break nodes are the first
    ones of a worker, which brings up a second Slurm for them; another worker may get one from it at the end.
    """
    if OWN & set(request.fixturenames):
        yield
        return
    breaks = request.node.get_closest_marker("breaks_nodes") is not None
    folder = request.getfixturevalue("pytester").path if "pytester" in request.fixturenames else HERE
    if breaks and os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0":
        second: OwnSlurm = request.getfixturevalue("breakable")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SLURM_CONF", second.env["SLURM_CONF"])
            for name in ("LLMBENCH_SLURM", "LLMBENCH_SLURM_PORT"):
                patch.setenv(name, second.up[name])
            yield
            Queue.mend()
            leave_no_job(folder)
        return
    with slurm_nodes(alone=breaks):
        yield
        if breaks:
            Queue.mend()
        leave_no_job(folder)


def leave_no_job(user: Path) -> None:
    """Wait until Slurm holds no job of any session in a user's folder."""
    for session in user.glob("reports/*-*-*"):
        Queue.wait_until_empty(session, 60)


def wrap(user: UserFolder, name: str, *lines: str) -> None:
    """Put a program in front of a Slurm command, which is $real in its lines, and which it calls after them."""
    folder = user.path / "bin"
    folder.mkdir(exist_ok=True)
    script = folder / name
    script.write_text("\n".join(["#!/bin/bash", f"real={shutil.which(name)}", *lines, 'exec $real "$@"', ""]))
    script.chmod(0o755)
    user.env["PATH"] = f"{folder}:{user.environment['PATH'].removeprefix(f'{folder}:')}"


class Queue:
    """Looking at Slurm's queue."""

    @staticmethod
    def jobs_of(session: Path) -> list[str]:
        lines = run_slurm("squeue", "--noheader", "--format=%i %k").splitlines()
        return [line.split()[0] for line in lines if f"llmbench:{session.name}" in line]

    @classmethod
    def wait_until_empty(cls, session: Path, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while left := cls.jobs_of(session):
            if time.monotonic() > deadline:
                pytest.fail(f"jobs {left} of {session.name} are still there after {timeout_s:g} s")
            time.sleep(0.2)

    @staticmethod
    def run(*command: str) -> str:
        return run_slurm(*command)

    @staticmethod
    def mend() -> None:
        """Start daemons that are dead, and put every node back into service."""
        subprocess.run([str(UP)], check=True, capture_output=True)


@pytest.fixture
def queue() -> type[Queue]:
    return Queue


@dataclass(frozen=True, kw_only=True)
class OwnSlurm:
    """A Slurm of a test's own, for what no other test could bear beside it."""

    base: Path  # its folder
    env: dict[str, str]  # variables for commands that use it
    up: dict[str, str]  # the environment of up.sh

    def run(self, *command: str) -> list[str]:
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        return sorted(done.stdout.splitlines())

    def kill_controller(self) -> None:
        os.kill(int((self.base / "run" / "slurmctld.pid").read_text()), signal.SIGKILL)

    def mend(self, **settings: str) -> None:
        """Start the daemons that are dead, and put every node back into service."""
        done = subprocess.run([str(UP)], env=self.up | settings, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def own_slurm(name: str, port: int, **settings: str) -> Iterator[OwnSlurm]:
    """Bring up a Slurm without accounting on ports of its own, and take it down without a trace."""
    if os.geteuid() != 0:
        pytest.skip("only root can start a Slurm")
    # Paths of sockets are short, so that pytest's own folders will not do.
    base = Path(tempfile.mkdtemp(prefix=f"llmbench-{name}-", dir="/tmp"))
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    down = {**clean, "LLMBENCH_SLURM": str(base), "LLMBENCH_SLURM_PORT": str(port)}
    env = {**clean, "SLURM_CONF": str(base / "etc" / "slurm.conf")}
    slurm = OwnSlurm(base=base, env=env, up={**down, "CPUS": "4", "ACCOUNTING": "0", **settings})
    # Another worker may have been given such a test from the end of the fifth one's.
    with Path(tempfile.gettempdir(), f"llmbench-own-slurm-{port}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            slurm.mend()
            yield slurm
        finally:
            subprocess.run([str(TOOLS / "down.sh")], env={**down, "WIPE": "1"}, check=True, capture_output=True)
            (base.parent / f"{base.name}.lock").unlink(missing_ok=True)
            shutil.rmtree(base, ignore_errors=True)


@pytest.fixture(scope="session")
def breakable() -> Iterator[OwnSlurm]:
    """Eight nodes to break, as up.sh makes them: all other tests would wait for minutes until theirs are whole."""
    with own_slurm("broken", 9000, CPUS="16", ACCOUNTING="1") as slurm:
        yield slurm
