"""Real rank processes: which rank a process is, how they start, meet, fail and end."""

import dataclasses
import gc
import time
from pathlib import Path
from socket import AF_INET
from subprocess import TimeoutExpired

import psutil
import pytest
import torch.distributed as dist

from pytest_llmbench.core.errors import ConfigError, RunError
from pytest_llmbench.core.wire.driver import CommandTask
from pytest_llmbench.core.wire.notes import second_start
from pytest_llmbench.core.wire.task import LaunchedTask, Task
from pytest_llmbench.readers.steps.step_log import read_steps
from pytest_llmbench.workloads.rank.context import RankContext, entry_of, place
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


LOCAL = {
    "SUBMITIT_EXECUTOR": "local", "SUBMITIT_LOCAL_GLOBALID": "1", "SUBMITIT_LOCAL_LOCALID": "1",
    "SUBMITIT_LOCAL_NTASKS": "2", "SUBMITIT_LOCAL_JOB_NUM_NODES": "1",
}  # fmt: skip
SLURM = {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NTASKS": "4", "SLURM_NNODES": "2"}
RUN = Path("/run")


def task(nodes: int, ranks_per_node: int) -> Task:
    return Task(entry="m:f", config={"key": 1}, nodes=nodes, ranks_per_node=ranks_per_node, device="cpu")


def test_each_launcher_places_a_rank() -> None:
    context = place(task(2, 2), RUN, SLURM)
    assert (context.rank, context.local_rank, context.world_size, context.nodes) == (3, 1, 4, 2)
    assert (context.folder, context.config, context.device) == (RUN, {"key": 1}, "cpu")
    # A step on part of an allocation is judged by its own size, not by that of the job.
    step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1", "SLURM_PROCID": "1"}
    context = place(task(1, 2), RUN, {**SLURM, **step})
    assert (context.rank, context.world_size) == (1, 2)
    # A local run started from a Slurm job follows submitit's variables and ignores the job's.
    context = place(task(1, 2), RUN, {**SLURM, **LOCAL})
    assert (context.rank, context.local_rank, context.world_size) == (1, 1, 2)
    # Run by hand or by submitit's debug executor, the process is rank 0 of 1.
    context = place(task(1, 1), RUN, {"SLURM_NTASKS": "8"})
    assert (context.rank, context.world_size) == (0, 1)


@pytest.mark.parametrize(("shape", "environ"), [
    pytest.param((2, 4), SLURM, id="fewer_ranks_than_asked"),
    pytest.param((1, 4), SLURM, id="spread_over_more_nodes"),
    pytest.param((2, 2), {**SLURM, "SLURM_LOCALID": "2"}, id="crowded_on_one_node"),
    pytest.param((2, 1), LOCAL, id="local_run_has_one_node"),
    pytest.param((1, 2), {}, id="no_launcher"),
])  # fmt: skip
def test_a_run_of_another_shape_is_refused(shape: tuple[int, int], environ: dict[str, str]) -> None:
    with pytest.raises(RunError, match=rf"asks for {shape[0]} nodes with {shape[1]} ranks each") as error:
        place(task(*shape), RUN, environ)
    assert error.value.kind == "wrong_ranks"


@pytest.mark.parametrize("value", [None, "", "two", "-1", "²"])
def test_a_variable_that_is_no_number_is_refused(value: str | None) -> None:
    environ = {name: text for name, text in SLURM.items() if name != "SLURM_LOCALID"}
    with pytest.raises(RunError, match=rf"should set SLURM_LOCALID to a number; it is {value!r}"):
        place(task(2, 2), RUN, environ if value is None else {**environ, "SLURM_LOCALID": value})


@pytest.mark.parametrize("kind", [Task, CommandTask])
@pytest.mark.parametrize("text", [None, "{", '{"entry": 1}', "[]"])
def test_a_task_that_cannot_be_read_is_an_error(tmp_path: Path, kind: type[LaunchedTask], text: str | None) -> None:
    if text is not None:
        (tmp_path / "task.json").write_text(text)
    with pytest.raises(ConfigError, match=r"task\.json"):
        kind.read(tmp_path / "task.json")


@pytest.mark.parametrize("collects", [True, False])
def test_garbage_is_collected_as_before_an_import(collects: bool) -> None:
    """What the import made is left out of it; where the import breaks, it goes on too."""
    was = gc.isenabled()
    (gc.enable if collects else gc.disable)()
    try:
        assert entry_of(Task(entry="json:dumps", config={}, nodes=1, ranks_per_node=1, device="cpu"))([1]) == "[1]"
        assert gc.get_freeze_count() > 0
        assert gc.isenabled() is collects
        with pytest.raises(ModuleNotFoundError):
            entry_of(Task(entry="absent_module:f", config={}, nodes=1, ranks_per_node=1, device="cpu"))
        assert gc.isenabled() is collects
    finally:
        (gc.enable if was else gc.disable)()
