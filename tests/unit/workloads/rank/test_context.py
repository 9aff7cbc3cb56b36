"""Which rank a process is, and when it refuses to be one."""

import gc
from pathlib import Path

import pytest

from pytest_llmbench.core.errors import ConfigError, RunError
from pytest_llmbench.core.wire.driver import CommandTask
from pytest_llmbench.core.wire.task import LaunchedTask, Task
from pytest_llmbench.workloads.rank.context import entry_of, place

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
