"""A whole session on a simulated cluster: pytest with all checks in a Slurm job whose commands are stand-ins."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

import psutil
import yaml

from benchmarks.scale.cluster import GPUS, Cluster
from pytest_llmbench.cluster.slurm.states import FIELD, RECORD
from tests.standins import dcgmi
from tests.standins.dcgm_outputs import printed
from tests.standins.nvidia_smi import gpu_node, links_text, smi_xml
from tests.standins.sysfs import NDV4, write_sysfs

CHECKOUT = Path(__file__).parents[2]
SYSTEM = {
    "name": "simulated", "cluster": "slurm", "gpus_per_node": GPUS, "network": {"nics_per_node": 8, "rate_gbits": 400},
    "gpu": {"model": "H100 80GB HBM3", "memory_gib": 80, "source": "the data sheet",
            "peak_tflops": {"bf16": 989.4, "fp16": 989.4, "fp32": 66.9, "tf32": 494.7, "fp8": 1978.9}},
}  # fmt: skip


def write_commands(folder: Path, cluster: Cluster) -> dict[str, str]:
    """Write Slurm's commands and those of a node; return the environment of a job of Slurm that has them."""
    path = gpu_node(folder / "node", xml=smi_xml(GPUS), links=links_text(GPUS))["PATH"]
    write_sysfs(folder / "sys", NDV4)
    options = {"nccl_topology": {"options": {"sysfs": f"{folder}/sys"}}}
    (folder / "simulated.yaml").write_text(yaml.safe_dump({**SYSTEM, "validation": options}))
    (folder / "dcgm.json").write_text(printed("4.4.2", gpus=GPUS))
    names = f"n[{cluster.hosts[0][1:]}-{cluster.hosts[-1][1:]}]"
    now = datetime.now().astimezone().replace(tzinfo=None).isoformat(timespec="seconds")
    row = FIELD.join(("7", "RUNNING", "None", names, now, str(os.getuid()), "acceptance", "(null)", now, "(null)"))
    (folder / "row").write_text(RECORD + row)
    switches = [
        f"SwitchName={name} Level=0 LinkSpeed=1 Nodes={','.join(cluster.leaf_hosts(name))}"
        for name in dict.fromkeys(cluster.leaf.values())
    ]
    (folder / "topology").write_text("\n".join(switches))
    (folder / "hosts").write_text("\n".join(cluster.hosts))
    python = f"PYTHONPATH={CHECKOUT} exec {sys.executable}"
    for name, body in {
        "srun": f'{python} -m benchmarks.scale.srun {cluster.nodes} {cluster.fault} {cluster.seed} "$@"',
        "squeue": f"cat {folder}/row",
        "scontrol": f'case "$*" in *hostnames*) cat {folder}/hosts;; *topology*) cat {folder}/topology;; esac',
        "sinfo": "", "sacct": "", "scancel": "", "sbatch": "exit 1",
        "dcgmi": f'DCGMI_PRINTS={folder}/dcgm exec {sys.executable} {dcgmi.__file__} "$@"',
    }.items():  # fmt: skip
        command = folder / "node" / "bin" / name
        command.write_text(f"#!/bin/sh\n{body}\n")
        command.chmod(0o755)
    return {"PATH": path, "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": str(cluster.nodes)}


def tree_kib(process: psutil.Process) -> Iterator[int]:
    """Resident memory of a process and its children, without the nodes: srun and what it starts."""
    try:
        command = process.cmdline()
        if "benchmarks.scale.srun" in command:
            return
        yield process.memory_info().rss >> 10
        children = process.children()
    except psutil.Error:
        return
    for child in children:
        yield from tree_kib(child)


def run_session(folder: Path, cluster: Cluster) -> Mapping[str, float]:
    """Run it; seconds, peak of the tree in MiB, and exit status."""
    env = {**os.environ, **write_commands(folder, cluster)}
    command = [
        sys.executable, "-m", "pytest", str(CHECKOUT / "suites" / "validation"), "--system", "simulated.yaml",
        "--nodes", str(cluster.nodes), "-p", "no:cacheprovider", "-p", "no:xdist", f"--rootdir={folder}",
    ]  # fmt: skip
    began, peak = time.monotonic(), 0
    with (folder / "terminal.txt").open("wb") as output:
        process = psutil.Popen(command, cwd=folder, env=env, stdout=output, stderr=subprocess.STDOUT)
        while process.poll() is None:
            peak = max(peak, sum(tree_kib(process)))
            time.sleep(0.2)
    return {"seconds": time.monotonic() - began, "peak_mib": peak / 1024, "status": process.returncode}
