"""Stands in for CUDA on a machine without a GPU: frameworks that hard-code "cuda" train on the CPU.

Megatron-Core, and with it Megatron-LM, NeMo 2 and metaseq, name CUDA in their code instead of taking a device from
their caller. With this module their unchanged code trains on the CPU, for tests and for trying out a configuration.
It changes PyTorch alone, in this process, and only on a machine without CUDA.

    python -m pytest_llmbench.workloads.cuda_on_cpu train.py --its --options
    python -m pytest_llmbench.workloads.cuda_on_cpu --no-cuda -m torchtitan.train --its --options
    torchrun --nproc-per-node 2 -m pytest_llmbench.workloads.cuda_on_cpu -m package.train --its --options

A CUDA device in a call of PyTorch is then the CPU. Streams are empty, as an operation of the CPU is done when its call
returns; events read the host's clock, so the times between them are true times of the CPU. Device memory in use is NaN,
as it is unmeasured. `torch.compile` is off, as it fails to trace through these replacements.

With `pretend_available`, `torch.cuda.is_available()` is true too, for programs that refuse to start otherwise
(Megatron-LM's pretrain_gpt.py). The device then has the name `CPU instead of CUDA`, NaN as its memory, and compute
capability 0.0, below that of any GPU, so that code for newer ones stays off. The compilation of Megatron-LM's fused
CUDA kernels is skipped. PyTorch itself sees the device, too, as in a `DataLoader` that pins memory.

torchtitan asks PyTorch for its accelerator instead, and takes "cuda" if there is none. With `--no-cuda` that
accelerator is the CPU and all else is as it was; FSDP, whose products of gradients and a factor gloo lacks, sums them.

The device is redirected in the thread that calls `install` alone, as PyTorch's function modes are.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import runpy
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Self

import torch
from torch.overrides import TorchFunctionMode

_CPU = torch.device("cpu")
_MARK = "_is_the_cpu"


def install(*, pretend_available: bool = False) -> None:
    """Map "cuda" to the CPU for the rest of this process, unless CUDA is available.

    It must come before the framework's import, which copies names out of `torch.cuda`. For `pretend_available`, see the
    module.
    """
    # The mark is on PyTorch, which is what was changed: run by -m, this module is there twice.
    if not hasattr(torch.cuda, _MARK):
        if torch.cuda.is_available():
            return
        os.environ["TORCHDYNAMO_DISABLE"] = "1"
        # It warns at every dropout that the CPU's random numbers move on while CUDA's are drawn: they are the same.
        logging.getLogger("megatron.core.tensor_parallel.random").setLevel(logging.ERROR)
        _replace({_MARK: True, **_replacements()})
        _replace({"range_push": _constant(None), "range_pop": _constant(None)}, torch.cuda.nvtx)
        _ignore_device_ids()
        _redirect()
    if pretend_available:
        _pretend_available()


class _CudaIsCpu(TorchFunctionMode):
    """Redirects every call of PyTorch in its thread."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if func in (torch.Tensor.cuda, torch.Tensor.pin_memory):
            return args[0]
        if func is torch.Tensor.record_stream:
            return None
        if func is torch.Tensor.type:  # `torch.cuda.FloatTensor`, by which optimizers look for their parameters
            return _type(*args, **named)
        if func is torch.Tensor.to:
            args = (args[0], *map(_device, args[1:]))
        if "device" in named:
            named["device"] = _device(named["device"])
        named.pop("pin_memory", None)
        return func(*args, **named)


def _redirect() -> None:
    mode = _CudaIsCpu()
    mode.__enter__()  # type: ignore[no-untyped-call]  # and never left
    # A mode is off inside the functions that it redirects, and so in all that `backward` calls.
    run_backward = torch.autograd._engine_run_backward  # type: ignore[attr-defined]  # noqa: SLF001

    def redirected(*args: Any, **named: Any) -> Any:
        with mode:
            return run_backward(*args, **named)

    torch.autograd._engine_run_backward = redirected  # type: ignore[attr-defined]  # noqa: SLF001


def _ignore_device_ids() -> None:
    parallel = torch.nn.parallel.DistributedDataParallel
    wrap = parallel.__init__

    def on_cpu(
        self: Any, module: Any, device_ids: object = None, output_device: object = None, *args: Any, **named: Any
    ) -> None:
        del device_ids, output_device
        wrap(self, module, None, None, *args, **named)

    parallel.__init__ = on_cpu  # type: ignore[method-assign]


def _device(value: Any) -> Any:
    """Return the CPU for a CUDA device, or the value as it is; a bare number is a CUDA device."""
    if isinstance(value, str):
        return _CPU if value.startswith("cuda") else value
    if isinstance(value, torch.device):
        return _CPU if value.type == "cuda" else value
    return _CPU if type(value) is int else value


def _type(tensor: torch.Tensor, dtype: Any = None, **named: Any) -> Any:
    if dtype is None:
        return tensor.type().replace("torch.", "torch.cuda.", 1)
    return tensor.type(dtype.replace("torch.cuda.", "torch.") if isinstance(dtype, str) else dtype, **named)


class _Stream:
    """A stream without order: work is done when its call returns."""

    cuda_stream = 0

    def __init__(self, *_: object, **__: object) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def wait_stream(self, stream: object) -> None: ...

    def wait_event(self, event: object) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def record_event(self, event: _CpuEvent | None = None) -> _CpuEvent:
        event = event or _CpuEvent()
        event.record()
        return event


class _CpuEvent:
    """A moment on the host's clock."""

    def __init__(self, *_: object, **__: object) -> None:
        self._at_s: float | None = None

    def record(self, *_: object) -> None:
        self._at_s = time.perf_counter()

    def elapsed_time(self, end: _CpuEvent) -> float:
        """Milliseconds from this event to `end`."""
        if self._at_s is None or end._at_s is None:
            raise RuntimeError("both events must be recorded before the time between them is known")
        return 1e3 * (end._at_s - self._at_s)

    def wait(self, *_: object) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True


# Properties of the pretended device.
_PROPERTIES = SimpleNamespace(
    name="CPU instead of CUDA", major=0, minor=0, total_memory=math.nan, multi_processor_count=0, gcnArchName=""
)


def _replacements() -> dict[str, Any]:
    """Values for names of `torch.cuda`. Shared objects would confuse PyTorch's compiler, so each is its own."""
    stream = _Stream()
    nothing = ("_lazy_init", "set_device", "synchronize", "empty_cache", "set_stream", "reset_peak_memory_stats")
    memory = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")
    return {
        **{name: _constant(None) for name in nothing},
        **{name: _constant(math.nan) for name in memory},
        "_lazy_call": lambda call, **_: call(),
        "_exchange_device": lambda _: -1,
        "_maybe_exchange_device": lambda _: -1,
        "default_generators": (torch.default_generator,),
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "Stream": _Stream,
        "Event": _CpuEvent,
        "stream": nullcontext,
        "current_stream": lambda *_, **__: stream,
        "default_stream": lambda *_, **__: stream,
        "is_current_stream_capturing": lambda: False,
        "mem_get_info": lambda *_, **__: (math.nan, math.nan),
    }


def _replace(values: Mapping[str, Any], module: ModuleType = torch.cuda) -> None:
    for name, value in values.items():
        setattr(module, name, value)
        # torch.cuda.random took its own copies when it was imported.
        if module is torch.cuda and hasattr(torch.cuda.random, name):
            setattr(torch.cuda.random, name, value)


def _pretend_available() -> None:
    _replace(
        {
            "is_available": lambda: True,
            "get_device_name": lambda *_: _PROPERTIES.name,
            "get_device_properties": lambda *_: _PROPERTIES,
            "get_device_capability": lambda *_: (_PROPERTIES.major, _PROPERTIES.minor),
        }
    )
    # Python takes this module instead of the one on disk, whose load() fails without nvcc.
    kernels = ModuleType("megatron.legacy.fused_kernels")
    kernels.load = _constant(None)  # type: ignore[attr-defined]
    sys.modules.setdefault(kernels.__name__, kernels)


def _accelerate_by_cpu() -> None:
    """Let PyTorch name the CPU as its accelerator, with the names that programs look up on one."""
    from torch.distributed.fsdp import FSDPModule  # noqa: PLC0415 - slow, and only needed here

    torch._utils._get_available_device_type = lambda: "cpu"  # noqa: SLF001
    _replace(
        {
            "get_device_name": lambda *_: _PROPERTIES.name,
            "get_device_properties": lambda *_: _PROPERTIES,
            "memory_stats": lambda *_: {},
            "current_device": lambda: 0,
            **{name: _constant(None) for name in ("set_device", "empty_cache", "reset_peak_memory_stats")},
        },
        torch.cpu,
    )
    divide = FSDPModule.set_gradient_divide_factor

    def sum_first(module: FSDPModule, factor: float) -> None:
        divide(module, factor)
        module.set_force_sum_reduction_for_comms(True)

    FSDPModule.set_gradient_divide_factor = sum_first  # type: ignore[assignment, method-assign]


def _constant(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def main(argv: Sequence[str] | None = None) -> None:
    """Run a script or module with "cuda" meaning the CPU, as `python SCRIPT` or `python -m MODULE` would."""
    parser = argparse.ArgumentParser(prog="python -m pytest_llmbench.workloads.cuda_on_cpu")
    parser.add_argument("--pretend-available", action="store_true", help="torch.cuda.is_available() is true too")
    parser.add_argument("--no-cuda", action="store_true", help='the CPU is the accelerator; "cuda" stays as it is')
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module, not a script")
    parser.add_argument("program", help="path of a script, or name of a module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the program's own")
    options = parser.parse_args(argv)
    if options.no_cuda:
        _accelerate_by_cpu()
    else:
        install(pretend_available=options.pretend_available)
    sys.argv = [options.program, *options.arguments]
    if options.module:
        runpy.run_module(options.program, run_name="__main__", alter_sys=True)
        return
    if not sys.flags.safe_path:
        sys.path[0] = str(Path(options.program).resolve().parent)
    runpy.run_path(options.program, run_name="__main__")


if __name__ == "__main__":
    main()
