"""What programs on the nodes and Slurm print, and the readers of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.mutations import nodes
from benchmarks.mutations.subjects import Subject, sample
from pytest_llmbench.checks.collectives.report import read_nccl_tests, read_nccl_tests_json
from pytest_llmbench.checks.dcgm.report import error_in, read_dcgm
from pytest_llmbench.checks.gpu.kernel_log import read_driver_log
from pytest_llmbench.checks.gpu.nvidia_smi import read_smi
from pytest_llmbench.checks.gpu.nvlink import read_links
from pytest_llmbench.checks.topology.check import read_topology
from pytest_llmbench.cluster.slurm.commands import slurm_words
from pytest_llmbench.cluster.slurm.states import FIELD, RECORD, job_rows, parse_duration, parse_time
from pytest_llmbench.core.errors import RunError
from pytest_llmbench.core.wire.labels import labels_in
from pytest_llmbench.readers.items import Unreadable
from pytest_llmbench.readers.pci import pci_address
from pytest_llmbench.readers.srun import cancel_reason, failed_node, first_to_end

Reader = tuple[Sequence[bytes], Callable[[bytes], Any]]
_ROW = FIELD.join(("17", "RUNNING", "None", "n[1-4,7]", "2026-11-23T03:11:26", "0", "llmbench-x", "/s/run.sh", "t o"))
_SRUN = (
    b"""srun: error: n4: task 6: Killed
srun: launch/slurm: _step_signal: Terminating StepId=17.0
srun: error: n1: tasks 0-1,3: Terminated
srun: error: Node failure on n[1-2]
""",
    b"""srun: Job step aborted: Waiting up to 7 seconds for job step to finish.
slurmstepd-n3: error: *** STEP 77.0 ON n3 CANCELLED AT 2026-11-23T03:29:08 DUE TO TIME LIMIT ***
srun: error: n3: task 0: Killed
""",
)
_TOPOLOGY = b"""<system version="1"><cpu numaid="0" affinity="ff" arch="x86_64"><pci busid="0000:1a:00.0"
 class="0x060400" link_speed="16 GT/s" link_width="16">
 <pci busid="0000:1b:00.0" class="0x030200" link_speed="32 GT/s" link_width="16">
 <gpu dev="0" sm="90" rank="0"><nvlink target="0000:1c:00.0" count="18"/></gpu></pci></pci></cpu></system>"""


def readers(_: Path) -> Mapping[str, Reader]:
    """Samples and reader, by name."""
    texts = ("nccl-tests/awslabs_all_reduce_2xp5_srun-l-prefix.txt", "nccl-tests/superbench_nccl_allgather.log")
    more = [data[:9000] for name in texts if (data := sample(name)) is not None]
    return {
        "nccl-tests": ([*_of(nodes.nccl_text()), *more], _text(read_nccl_tests)),
        "json nccl-tests": (_of(nodes.nccl_json()), _text(read_nccl_tests_json, Unreadable)),
        "json dcgm": (_of(nodes.dcgm_json()), _text(lambda text: (read_dcgm(text), error_in(text)))),
        "nvidia-smi": (_of(nodes.nvidia_smi()), _text(read_smi, RunError)),
        "nvidia-smi nvlink": (_of(nodes.nvlink()), _text(read_links, RunError)),
        "kernel log": (_of(nodes.kernel_log()), _text(lambda text: read_driver_log(text.splitlines()))),
        "topology": ([_TOPOLOGY], _text(read_topology, RunError)),
        "srun": (_SRUN, _text(lambda text: (first_to_end(text), cancel_reason(text), failed_node(text)))),
        "squeue": ([(RECORD + _ROW).encode() * 3], _text(lambda text: list(job_rows(text.split(RECORD))))),
        "sacct": ([b"1-02:03:04.5", b"Unknown"], _text(lambda text: (parse_duration(text), parse_time(text)))),
        "slurm errors": ([b"sbatch: error: Batch job submission failed: Invalid qos\n"], _text(slurm_words)),
        "label": ([b"x #llmbench run=ab-1 launched=1764000000.123 of=4 host=n1 # y"], _text(labels_in)),
        "pci": ([b"GPU 00000000:1B:00.0 PCI:0000:1b:00"], _text(pci_address)),
    }


def _of(subjects: Any) -> list[bytes]:
    found: list[Subject] = list(subjects)
    return [data for each in found for data in each.files.values()]


def _text(read: Callable[[str], Any], *errors: type[Exception]) -> Callable[[bytes], Any]:
    """As the ranks that ask programs read what those print."""

    def reader(data: bytes) -> Any:
        with suppress(*errors):
            return read(data.decode("utf-8", errors="replace"))

    return reader
