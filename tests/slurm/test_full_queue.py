"""Limits on the number of jobs in the queue: the session holds jobs back. Limits on one job: it is an error at once."""

import uuid
from collections.abc import Callable, Iterator

import pytest

from tests.conftest import UserFolder
from tests.slurm.conftest import Queue, run_slurm, wrap

# Slurm is asked again sooner than on a cluster.
IMPATIENT = "from pytest_llmbench.session import schedule\nschedule.QUIET_S = 0.5\n"


@pytest.fixture
def qos() -> Iterator[Callable[[str], str]]:
    """Makes a QOS with a limit, for this test alone; the jobs of other tests do not count."""
    if not run_slurm("sacctmgr", "--noheader", "--parsable2", "show", "cluster").strip():
        pytest.skip("this Slurm keeps no accounts, and so has no limits")
    made = []

    def make(limit: str) -> str:
        name = f"q{uuid.uuid4().hex[:8]}"
        run_slurm("sacctmgr", "-i", "add", "qos", name, limit)
        made.append(name)
        run_slurm("sacctmgr", "-i", "modify", "user", "root", "where", "account=proj", "set", f"qos+={name}")
        return name

    yield make
    for name in made:
        run_slurm("sacctmgr", "-i", "delete", "qos", name)


@pytest.mark.parametrize("distribution", ["-n0", "-n2"])
def test_jobs_beyond_a_limit(
    user: UserFolder, queue: type[Queue], qos: Callable[[str], str], distribution: str
) -> None:
    """Of three runs one may be in the queue at a time: each gets its verdict by one job; the limit is named once."""
    names = ("one", "two", "three")
    for name in names:
        user.recipe(name)
    words = ("--cluster", "slurm", "--slurm", f"qos={qos('MaxSubmitJobsPerUser=1')}", distribution)
    result = user.run(*words, "-k", " or ".join(names), code=0)
    assert result.text.count("Slurm takes no more jobs now (QOSMaxSubmitJobPerUserLimit)") == 1
    records = [result.record(name) for name in names]
    assert len({record["job_id"] for record in records}) == 3
    assert [record["superseded"] for record in records] == [[], [], []]


@pytest.mark.parametrize("nodes", [(), ("--nodes", "1")], ids=["a job a run", "held nodes"])
def test_a_limit_of_no_job_is_an_error(user: UserFolder, qos: Callable[[str], str], nodes: tuple[str, ...]) -> None:
    user.recipe()
    (user.path / "conftest.py").write_text(IMPATIENT)
    # The jobs of other tests are this user's as well, and the session would wait for their ends.
    wrap(user, "squeue", 'case " $* " in *" --user="*) exit 0;; esac')
    result = user.run("--cluster", "slurm", "--slurm", f"qos={qos('MaxSubmitJobsPerUser=0')}", *nodes, "-k", "tiny")
    assert result.returncode == 1, result.text
    assert result.record()["problem"]["kind"] == "allocation"
    assert "no job is in the queue that could count" in result.record()["problem"]["message"]


@pytest.mark.parametrize(("limit", "why"), [
    ("MaxTRESPerJob=node=1", "will never start: QOSMaxNodePerJobLimit"),
    ("GrpTRES=node=1", "will never start: QOSGrpNodeLimit: GrpTRES=node of QOS q"),
    ("GrpSubmitJobs=0", "is 0, so none of its jobs is ever accepted"),
])  # fmt: skip
def test_a_job_too_large_for_its_qos(user: UserFolder, qos: Callable[[str], str], limit: str, why: str) -> None:
    user.recipe(nodes=2)
    result = user.run("--cluster", "slurm", "--slurm", f"qos={qos(limit)}", "-k", "tiny", code=1)
    assert why in result.record()["problem"]["message"]
