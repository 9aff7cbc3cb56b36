"""A framework that is a command, on Slurm nodes: its own srun runs inside our job, on the run's nodes and no others."""

import re
import signal
from pathlib import Path

import pytest

from tests.conftest import Result, UserFolder
from tests.slurm.conftest import Queue
from tests.support.standin import MegatronLM, alive

FOUR_RANKS = "megatron_lm_4_ranks.log"


@pytest.fixture
def megatron(user: UserFolder) -> MegatronLM:
    """The stand-in on two nodes with two ranks each, and a test of it."""
    framework = MegatronLM(user)
    framework.install(cluster="slurm")
    framework.recipe(nodes=2, log=FOUR_RANKS)
    return framework


def nodes_of_ranks(result: Result, run: str) -> set[str]:
    output = (result.session / "runs" / run / "logs" / "output.log").read_text()
    return set(re.findall(r"node: (\S+) arguments:", output))


@pytest.mark.parametrize(("options", "distribution"), [
    (("--nodes", "2"), "-n0"), (("--nodes", "2"), "-n2"), ((), "-n0"),
], ids=["session", "xdist", "run"])  # fmt: skip
def test_its_ranks_run_on_the_nodes_asked_for(
    megatron: MegatronLM, queue: type[Queue], options: tuple[str, ...], distribution: str
) -> None:
    result = megatron.user.run("--system", "here.yaml", "-k", "tiny", *options, distribution, code=0)
    record = result.record()
    assert len(set(record["hosts"])) == 2
    assert nodes_of_ranks(result, "tiny") == set(record["hosts"])
    assert record["provenance"]["slurm"]
    assert record["provenance"]["exit_code"] == "0"
    folder = result.session / "runs" / "tiny"
    first = record["hosts"][0]
    assert (folder / "hostfile").read_text() == "".join(f"{host} slots=2\n" for host in record["hosts"])
    assert "srun --overlap" in (folder / "run.sh").read_text()
    assert f"--rdzv_endpoint={first}" not in (folder / "run.sh").read_text()  # the name is filled in on the node
    queue.wait_until_empty(result.session, 30)
    assert alive(result.session) == []


def test_groups_of_nodes_stay_on_their_nodes(megatron: MegatronLM) -> None:
    result = megatron.user.run("--system", "here.yaml", "-k", "tiny", "--nodes", "4", "--nodes-per-run", "2", code=0)
    one, two = (result.record(f"tiny-group{group}") for group in (1, 2))
    assert set(one["hosts"]).isdisjoint(two["hosts"])
    assert one["timings"]["submitted"] < two["timings"]["ended"]
    assert two["timings"]["submitted"] < one["timings"]["ended"]
    for record in (one, two):
        assert nodes_of_ranks(result, record["key"]) == set(record["hosts"])


def test_one_node_has_a_name(megatron: MegatronLM) -> None:
    megatron.recipe(nodes=1)
    rank = megatron.user.path / "megatron" / "pretrain_gpt.py"
    rank.write_text("import os\nprint('FIRST', os.environ['LLMBENCH_FIRST_HOST'], flush=True)\n" + rank.read_text())
    result = megatron.user.run("--system", "here.yaml", "-k", "tiny", "--nodes", "1", code=0)
    (host,) = result.record()["hosts"]
    assert f"FIRST {host}\n" in (result.session / "runs" / "tiny" / "logs" / "output.log").read_text()


@pytest.mark.parametrize("options", [("--nodes", "2"), ()], ids=["session", "run"])
def test_nothing_is_left_running(megatron: MegatronLM, queue: type[Queue], options: tuple[str, ...]) -> None:
    """Ctrl-C ends the job, its steps, and all ranks in sessions of their own."""
    megatron.install(cluster="slurm", speed=0.02)
    process = megatron.user.start("--system", "here.yaml", "-k", "tiny", *options)
    session = megatron.user.wait_for(lambda session: running(session) and session)
    assert len([line for line in alive(session) if "pretrain_gpt.py --tensor" in line]) >= 4
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    queue.wait_until_empty(session, 60)
    megatron.user.wait_for(lambda session: not alive(session), timeout_s=60)


def running(session: Path) -> bool:
    log = session / "runs" / "tiny" / "logs" / "output.log"
    return log.is_file() and "training ..." in log.read_text()
