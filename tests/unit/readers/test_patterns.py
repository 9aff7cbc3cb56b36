"""Numbers as frameworks print them, and the words of failures."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.readers.patterns import FAILURES, cut_off, failure, number, remoteness


@given(st.floats())
def test_every_number_is_read_back(value: float) -> None:
    for text in (repr(value), f"+{value!r}" if value > 0 else repr(value)):
        found = number(text)
        assert found is not None
        assert found == value or (math.isnan(found) and math.isnan(value))


@pytest.mark.parametrize("text", ["", ".", "1_0", "٣", "0x1", "1e", "1 2", "nan.1", "--1", "1,000", "infinite"])
def test_what_is_no_number(text: str) -> None:
    assert number(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: x",
        "KeyboardInterrupt",
        "torch.distributed.DistBackendError: NCCL error in: x",
        "CUDA out of memory. Tried to allocate 2 GiB",
        "slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED ***",
        "srun: error: n1: task 0: Exited with exit code 1",
        "pretrain_gpt.py: error: unrecognized arguments: --x",
        "error: the following arguments are required: --data",
        "Exception: all is lost",
        "Fatal Python error: Segmentation fault",
        "/x/run.sh: line 12: 34567 Segmentation fault      (core dumped) python train.py",
        "[E1121 08:13:43.123456789 ProcessGroupNCCL.cpp:683] [Rank 0] Watchdog caught collective operation timeout",
        "[E ProcessGroupNCCL.cpp:474] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3",
        "E1121 08:13:43.023000 6973 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9)",
        "python: malloc.c:2617: sysmalloc: Assertion `(old_top == initial_top (av))' failed.",
        "free(): invalid pointer", "double free or corruption (!prev)", "corrupted size vs. prev_size",
        "*** stack smashing detected ***: terminated", "*** SIGSEGV received at time=1700000000 on cpu 12 ***",
        "Signal 11 (SIGSEGV) received by PID 12345", "[gpu01:12345] *** Process received signal ***",
        "[gpu01:12345] Signal: Segmentation fault (11)", "Caught signal 7 (Bus error: nonexistent physical address)",
        "FATAL: kernel `fmha_cutlassF_f32` is for sm80-sm100, but was built for sm37",
        "python: error while loading shared libraries: libnccl.so.2: cannot open shared object file",
        "HSA_STATUS_ERROR_OUT_OF_RESOURCES: x", "CUDA error: an illegal memory access was encountered",
        "HIP error: out of memory", "MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD",
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null)", "HIP out of memory. Tried to allocate 2 GiB",
        "/bin/bash: line 1: torchrun: command not found", "docker: Error response from daemon: no driver",
        "python3: can't open file '/x/pretrain_gpt.py': [Errno 2] No such file or directory",
        "mpirun noticed that process rank 3 with PID 0 on node gpu01 exited on signal 9 (Killed).",
        "[gpu01:4711] *** An error occurred in MPI_Allreduce", "cp: error writing 'x': No space left on device",
        "../aten/src/ATen/native/cuda/Indexing.cu:1308: f: block: [0,0,0], thread: [0,0,0] Assertion `a < b` failed.",
        "gpu01:4711:4811 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : port error",
        "No space left on device", "Transport endpoint is not connected", "error loading checkpoint",
        "*** glibc detected *** python: double free or corruption (!prev): 0x0 ***",
        "Assertion failed: (x > 0), function f, file y.c, line 3.", "Failed: Cuda error /x.cu:12 'invalid argument'",
        "Exception raised from checkTimeout at ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:564",
        "DataLoader worker (pid 4711) is killed by signal: Killed.", "Error in sitecustomize; set PYTHONVERBOSE",
        "[2026-11-26 10:00:00,123] [ERROR] [launch.py:434:sigkill_handler] exits with return code = 1",
        "CUDA driver version is insufficient for CUDA runtime version",
        "ORTE was unable to reliably start one or more daemons.",
        "Primary job  terminated normally, but 1 process returned a non-zero exit code.",
        'container_linux.go:380: starting container process caused: exec: "python": not found',
    ],
)  # fmt: skip
def test_failures(text: str) -> None:
    assert failure(f"{text} \n") == text
    assert any(needle in text.encode() for needle in FAILURES)


@pytest.mark.parametrize(
    "text",
    [
        "UserWarning: no Error: here", "  File 'x.py', line 3", "Error rate: 0", "see ValueError: below", "",
        "Exception ignored in: <function f>", "sending SIGTERM to 3 processes", "no CUDA error was seen",
        "[I1121 08:13:43.1 ProcessGroupNCCL.cpp:9] ok", "loss error: 4.0",
    ],
)  # fmt: skip
def test_no_failures(text: str) -> None:
    assert failure(text) is None


def test_the_nearer_to_the_cause_the_better() -> None:
    """A program's own words, torchrun's on who ended how, a rank whose peer is gone, a launcher's summary."""
    in_order = [
        "ValueError: x",
        "E1121 08:13:43.023000 6973 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9)",
        "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:19670",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    ]
    assert all(failure(words) for words in in_order)
    assert [remoteness(words) for words in in_order] == [0, 1, 2, 3]
    assert remoteness("torch.distributed.elastic.multiprocessing.api.SignalException: Process 1 got signal: 15") == 3
    assert remoteness("srun: error: n1: task 0: Killed") == 3


@pytest.mark.parametrize("what", ["JOB 123 ON n1", "STEP 123.0 ON jwb-1.x", "STEP 123.batch ON n1", "JOB 1+0 ON n1"])
def test_slurm_says_that_it_cut_a_run_off(what: str) -> None:
    line = f"slurmstepd: error: *** {what} CANCELLED AT 2024-01-01T00:00:00 DUE TO TIME LIMIT ***"
    assert cut_off(line) == line
    assert cut_off(f"Epoch 0: 50%|##   | 20/40 [00:31<00:31]{line}") == line
    assert cut_off(line.removeprefix("slurmstepd: ")) == line.removeprefix("slurmstepd: ")  # behind a time
    assert cut_off(line.replace("TIME LIMIT", "NODE FAILURE")) is None
    assert cut_off(line.replace(" DUE TO TIME LIMIT", "")) is None
    assert cut_off(line[:-3]) is None
    assert cut_off(f"print({line!r})") is None
