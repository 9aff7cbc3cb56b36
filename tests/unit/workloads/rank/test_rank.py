"""Real rank processes: how they start, meet, fail and end."""

import dataclasses
import time
from pathlib import Path
from socket import AF_INET
from subprocess import TimeoutExpired

import psutil
import pytest
import torch.distributed as dist

from pytest_llmbench.core.errors import RunError
from pytest_llmbench.core.wire.notes import second_start
from pytest_llmbench.readers.steps.step_log import read_steps
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.main import OWNER_GONE, run_rank
from pytest_llmbench.workloads.rank.rendezvous import exchange_texts, open_store, process_group
from tests.unit.workloads.conftest import Launch

# Rank 1 fails while the others are connected to it and do not come back.
FAILING = """
import time
from pytest_llmbench.workloads.rank.rendezvous import process_group

def entry(context, log):
    with process_group(context, 30):
        if context.rank == 1:
            raise RuntimeError("no such luck\\nat all")
        time.sleep(600)
"""
# The owner is already silent; the thread that notices must not need this one.
WAITING = """
import time

def entry(context, log):
    log.phase(0, "forward")
    time.sleep(600)
"""


def test_a_failed_rank_ends_at_once_though_another_hangs(tmp_path: Path, launch: Launch) -> None:
    """The rank that raised ends with status 1 and leaves its error behind; it waits for nobody."""
    (tmp_path / "failing.py").write_text(FAILING)
    hanging, failing = launch(tmp_path, "failing:entry")
    assert failing.wait(300) == 1
    with pytest.raises(TimeoutExpired):
        hanging.wait(0.1)
    infos = {info.rank: info for info in read_steps(tmp_path).ranks}
    assert infos[1].failure == "RuntimeError: no such luck at all"
    assert not infos[1].ended
    assert infos[0].failure is None
    assert "no such luck" in (tmp_path / "output-1").read_text()


def test_a_rank_ends_with_its_owner(tmp_path: Path, launch: Launch) -> None:
    """When the counter stops changing, the rank ends with its own status and says why."""
    (tmp_path / "waiting.py").write_text(WAITING)
    owner = tmp_path / "owner"
    (process,) = launch(tmp_path, "waiting:entry", ranks=1, owner={"path": str(owner), "ttl_s": 1.0})
    phase = tmp_path / "phase/rank-00000"
    started = None
    # Some time beyond its start, and longer than the ttl in all.
    while started is None or time.monotonic() < started + 2:
        owner.write_text(str(time.monotonic()))
        assert process.poll() is None
        if started is None and phase.exists() and "forward" in phase.read_text():
            started = time.monotonic()
        time.sleep(0.05)
    assert process.wait(300) == OWNER_GONE
    failure = read_steps(tmp_path).ranks[0].failure
    assert failure == f"OwnerGone: its session has been silent for 1 s ({owner})"
    assert phase.read_text().split() == ["0", "forward", "0"]


def test_a_wrong_shape_is_refused_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Started by srun with another number of ranks, the process raises and leaves no log."""
    (tmp_path / "task.json").write_text(
        '{"entry": "m:f", "config": {}, "nodes": 2, "ranks_per_node": 8, "device": "cpu"}'
    )
    monkeypatch.delenv("SUBMITIT_EXECUTOR", raising=False)
    for name, value in {"PROCID": "0", "LOCALID": "0", "NTASKS": "8", "NNODES": "1"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
        monkeypatch.delenv(f"SLURM_STEP_NUM_{name}", raising=False)
    with pytest.raises(RunError, match="asks for 2 nodes with 8 ranks each; the launcher started 8 ranks on 1"):
        run_rank(str(tmp_path))
    assert not (tmp_path / "steps").exists()


def test_a_second_start_is_refused_and_leaves_word_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller that forgot the first start begins the job again: the log stays as it is."""
    (tmp_path / "task.json").write_text(
        '{"entry": "builtins:print", "config": {}, "nodes": 1, "ranks_per_node": 1, "device": "cpu"}'
    )
    for name in ("SUBMITIT_EXECUTOR", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    run_rank(str(tmp_path))
    log = tmp_path / "steps" / "rank-00000.jsonl"
    before = log.read_bytes()
    assert second_start(tmp_path) is None
    with pytest.raises(RunError, match="needs its own folder"):
        run_rank(str(tmp_path))
    assert log.read_bytes() == before != b""
    assert (second_start(tmp_path) or "").startswith("rank-00000 on ")


def test_one_rank_meets_itself_on_a_free_port(context: RankContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing listens on a network of the machine."""
    before = listening()
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with process_group(context) as device:
        assert {host for host, _ in listening() - before} == {"127.0.0.1"}
        assert exchange_texts('{"é": 1}', device) == ['{"é": 1}']
        assert exchange_texts("", device) == [""]
        assert device.type == "cpu"
        assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
    assert not dist.is_initialized()


def test_a_missing_rank_0_is_named(context: RankContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    other = dataclasses.replace(context, rank=1, world_size=2)
    message = r"rank 0 did not publish .*rendezvous\.json within 0\.1 s"
    with pytest.raises(RunError, match=message) as error, process_group(other, timeout_s=0.1):
        pytest.fail("there is nobody to meet")
    assert error.value.kind == "no_rendezvous"


def listening() -> set[tuple[str, int]]:
    """Address and port of each socket of this process that waits for others."""
    sockets = psutil.Process().net_connections("tcp")
    return {(socket.laddr[0], socket.laddr[1]) for socket in sockets if socket.status == psutil.CONN_LISTEN}


@pytest.mark.parametrize(("resolved", "bound"), [
    ("127.0.0.1", {"::", "0.0.0.0"}), ("192.0.2.1", {"::", "0.0.0.0"}), ("", set()),
], ids=["the machine itself", "not its address", "its address"])  # fmt: skip
def test_between_nodes_the_address_of_the_name_is_listened_at(
    context: RankContext, monkeypatch: pytest.MonkeyPatch, resolved: str, bound: set[str]
) -> None:
    """A name that resolves to no network of the machine is served on all of them, as other nodes may know it."""
    found = (each.address for nets in psutil.net_if_addrs().values() for each in nets if each.family == AF_INET)
    own = next((address for address in found if not address.startswith("127.")), None)
    if own is None and not resolved:
        pytest.skip("this machine has no network")
    monkeypatch.setattr("socket.gethostbyname", lambda _name: resolved or own)
    before = listening()
    store = open_store(dataclasses.replace(context, nodes=2, ranks_per_node=1), 30.0)
    (address,) = {host for host, _ in listening() - before}
    assert address in (bound if resolved else {own})
    store.set("key", "value")
