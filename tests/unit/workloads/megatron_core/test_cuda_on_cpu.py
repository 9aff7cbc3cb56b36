"""The stand-in for CUDA: what a program that can only say "cuda" sees on a machine without a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_llmbench.workloads import cuda_on_cpu
from tests.support.warm.asking import Forked

MODULE = "pytest_llmbench.workloads.cuda_on_cpu"
# Each program prints what it saw as JSON. It runs in a process of its own: the stand-in is there to stay.
TENSORS = """
import json, time, torch

class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x
    @staticmethod
    def backward(ctx, gradient):
        made = torch.full_like(gradient, 2.0, device=torch.cuda.current_device())
        seen["made_in_backward"] = made.device.type
        return gradient * made

seen = {}
weight = torch.nn.Linear(2, 2).cuda().weight
Doubled.apply(weight).sum().backward()
seen["devices"] = sorted({
    tensor.device.type for tensor in (
        weight,
        torch.zeros(2, device="cuda"),
        torch.zeros(2, device=torch.device("cuda", 0)),
        torch.zeros(2, device=0),
        torch.zeros(2, pin_memory=True).pin_memory(),
        torch.zeros(2).to("cuda:0", torch.float64),
        torch.zeros(2).to(device="cuda"),
    )
})
seen["types"] = [weight.type(), weight.bfloat16().type(), weight.type("torch.cuda.HalfTensor").type()]
torch.cuda.manual_seed(1)
state, first = torch.cuda.get_rng_state(), torch.rand(4, device="cuda").tolist()
torch.cuda.set_rng_state(state)
seen["repeated"] = torch.rand(4, device="cuda").tolist() == first
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
with torch.cuda.device(0), torch.cuda.stream(torch.cuda.Stream()) as stream:
    start.record(stream)
    before = time.perf_counter()
    time.sleep(0.02)
    slept_ms = 1e3 * (time.perf_counter() - before)
    torch.cuda.current_stream().wait_stream(stream)
    end.record()
seen["timed_the_sleep"] = start.elapsed_time(end) >= slept_ms
seen["devices_there"] = [torch.cuda.device_count(), torch.cuda.current_device()]
seen["memory"] = [str(torch.cuda.memory_allocated()), str(torch.cuda.max_memory_reserved()), torch.cuda.memory_stats()]
seen["available"] = torch.cuda.is_available()
print(json.dumps(seen))
"""
PLACE = """
import json, sys
import beside
print(json.dumps([__name__, sys.argv[1:], beside.__name__]))
"""
PRETENDED = """
import json, torch
from megatron.legacy import fused_kernels
device = torch.cuda.get_device_properties(0)
print(json.dumps([
    torch.cuda.is_available(), device.name, torch.cuda.get_device_capability(), str(device.total_memory),
    fused_kernels.load("any arguments"),
]))
"""

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="it stands in for a CUDA that is there")


def run(*arguments: str, cwd: Path) -> Any:
    """Run the module's command line where PyTorch is imported already, and return what the program printed."""
    with (cwd / "printed").open("w") as output:
        assert Forked([MODULE, *arguments], cwd, os.environ, output, "torch").wait(60) == 0
    return json.loads((cwd / "printed").read_text())


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("program")
    (folder / "tensors.py").write_text(TENSORS)
    answer: dict[str, Any] = run("tensors.py", cwd=folder)
    return answer


def test_cuda_is_the_cpu_wherever_it_is_said(seen: dict[str, Any]) -> None:
    """Tensors made for or moved to CUDA are on the CPU, also in the backward pass."""
    assert (seen["devices"], seen["made_in_backward"]) == (["cpu"], "cpu")
    # Optimizers choose by the name of the type, which CUDA is in, and may convert to such a name.
    assert seen["types"] == ["torch.cuda.FloatTensor", "torch.cuda.BFloat16Tensor", "torch.cuda.HalfTensor"]
    # Recomputation in the backward pass draws the dropout of the forward pass again.
    assert seen["repeated"]
    assert seen["timed_the_sleep"]
    # Memory is NaN and without statistics, CUDA stays unavailable, and its one device has no properties.
    assert seen["memory"] == ["nan", "nan", {}]
    assert seen["available"] is False
    assert seen["devices_there"] == [1, 0]


def test_an_event_that_did_not_happen_has_no_time() -> None:
    recorded = cuda_on_cpu._CpuEvent()
    recorded.record()
    for start, end in ((recorded, cuda_on_cpu._CpuEvent()), (cuda_on_cpu._CpuEvent(), recorded)):
        with pytest.raises(RuntimeError, match="both events must be recorded"):
            start.elapsed_time(end)


@pytest.mark.parametrize("arguments", [["program.py"], ["-m", "program"]])
def test_a_program_starts_as_python_would_start_it(tmp_path: Path, arguments: list[str]) -> None:
    """A script or module is `__main__`, sees its own arguments only, and imports from its own folder."""
    (tmp_path / "program.py").write_text(PLACE)
    (tmp_path / "beside.py").touch()
    arguments = [*arguments, "--pretend-available", "-m", "1"]
    assert run(*arguments, cwd=tmp_path) == ["__main__", ["--pretend-available", "-m", "1"], "beside"]


def test_a_script_imports_from_its_own_folder_wherever_it_is_started(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "program.py").write_text(PLACE)
    (folder / "beside.py").touch()
    assert run("elsewhere/program.py", cwd=tmp_path) == ["__main__", [], "beside"]


def test_a_pretended_gpu_says_what_it_is(tmp_path: Path) -> None:
    """Asked to, CUDA is available, as an old device with a telling name; Megatron-LM's kernels are not compiled."""
    package = tmp_path / "megatron" / "legacy"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (tmp_path / "program.py").write_text(PRETENDED)
    assert run("--pretend-available", "program.py", cwd=tmp_path) == [
        True, "CPU instead of CUDA", [0, 0], "nan", None,
    ]  # fmt: skip


def test_a_gpu_that_is_there_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = dict(vars(torch.cuda))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    cuda_on_cpu.install(pretend_available=True)
    monkeypatch.undo()
    assert dict(vars(torch.cuda)) == before


def test_it_needs_nothing_but_pytorch() -> None:
    """A framework's own environment has PyTorch, and none of what the rest of this package needs."""
    code = "import sys; sys.modules.update(dict.fromkeys(['pydantic', 'yaml', 'submitit', 'pytest'])); import " + MODULE
    assert subprocess.run([sys.executable, "-W", "error", "-c", code], check=False).returncode == 0


WRAPPED = """
import json, torch, torch.distributed as dist
dist.init_process_group("gloo", init_method="file://{meeting}", rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2).cuda(), device_ids=[0], output_device=0)
model(torch.ones(1, 2, device="cuda")).sum().backward()
print(json.dumps(model.module.weight.grad.tolist()))
"""


def test_a_model_can_be_wrapped_for_a_device(tmp_path: Path) -> None:
    """`DistributedDataParallel` is told CUDA devices by number, which PyTorch refuses of a module on the CPU."""
    program = tmp_path / "wrapped.py"
    program.write_text(WRAPPED.format(meeting=tmp_path / "meeting"))
    done = subprocess.run([sys.executable, "-m", MODULE, str(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[1.0, 1.0], [1.0, 1.0]]
