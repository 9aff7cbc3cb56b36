"""srun of a simulated cluster: it answers a probe in its step's folder for all ranks.

It is a process of its own, as the real one is: what it takes counts for the nodes, not for the session.
"""

import json
import random
import sys
from pathlib import Path

from benchmarks.scale.cluster import Cluster
from pytest_llmbench.checks.base import Probe
from pytest_llmbench.core.files import make_folder
from pytest_llmbench.core.wire import layout
from pytest_llmbench.core.wire.task import Task


def main(nodes: str, fault: str, seed: str, *arguments: str) -> None:
    """Answer; the last argument is the folder."""
    folder = Path(arguments[-1])
    task = Task.read(folder / layout.TASK)
    hosts = next(word for word in arguments if word.startswith("--nodelist=")).partition("=")[2].split(",")
    cluster = Cluster(int(nodes), fault, int(seed), folder=folder)
    cluster.random = random.Random(f"{seed} {folder.name}")
    name = folder.name.partition("-")[2]
    probe = Probe(
        name=name, entry=task.entry, config=task.config, deadline_s=1, hosts=tuple(hosts),
        ranks_per_node=task.ranks_per_node,
    )  # fmt: skip
    make_folder(folder / layout.ANSWERS)
    make_folder(folder / layout.PHASES)
    for answer in cluster.answer(probe):
        who = {"host": answer.host, "rank": answer.rank, "local_rank": answer.local_rank}
        layout.answer(folder, answer.rank).write_text(json.dumps({**who, "data": answer.data}))


if __name__ == "__main__":
    main(*sys.argv[1:])
