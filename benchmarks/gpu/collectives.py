"""Our collectives against nccl-tests', in turns, in one session, on the GPUs of this machine.

    python benchmarks/gpu/collectives.py FOLDER_OF_NCCL_TESTS [--gpus 4] [--rounds 1] [--record FILE]

all_reduce is measured at every size, the others at 16 MiB, 128 MiB, 1 GiB and 8 GiB. A ratio is ours over theirs, of
the medians over the rounds, of busbw at the same size and in the same place. nccl-tests are told where PyTorch's own
NCCL is, so that both measure the same library. With `--device cpu` ours runs on gloo, theirs is what the folder has.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pytest_llmbench.checks.collectives.nodes.answer import RankCollectives
from pytest_llmbench.checks.collectives.report import read_nccl_tests, read_nccl_tests_json
from pytest_llmbench.core.record.curves import COLLECTIVES, Curve, size_name

PLACES = ("out_of_place", "in_place")
Curves = dict[str, Curve]


def ours(collectives: Sequence[str], sizes: Sequence[int], options: argparse.Namespace) -> Curves:
    """Measure with torch.distributed: a process per GPU, as the check starts them."""
    config = {"collectives": collectives, "sizes": sizes, "iterations": options.iterations, "warm_up": 5, "checked": 1}
    task = {
        "entry": "pytest_llmbench.checks.collectives.nodes.collectives:measure", "config": config, "nodes": 1,
        "ranks_per_node": options.gpus, "device": options.device,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "task.json").write_text(json.dumps(task))
        ranks = [_rank(folder, rank, options.gpus) for rank in range(options.gpus)]
        for process in ranks:
            process.wait()
        answers = [json.loads(path.read_bytes()) for path in sorted((folder / "answers").glob("rank-*.json"))]
    failed = [f"rank {answer['rank']}: {answer['why']}" for answer in answers if "why" in answer]
    if failed or len(answers) != options.gpus:
        sys.exit(f"{len(answers)} of {options.gpus} ranks answered: {'; '.join(failed)}")
    measured = RankCollectives.model_validate(answers[0]["data"]).measured
    assert measured is not None, "rank 0 has the measurement of all"
    for note in (*measured.notes, *measured.unsupported.items()):
        print("note:", note)
    return dict(measured.curves)


def _rank(folder: Path, rank: int, ranks: int) -> subprocess.Popen[bytes]:
    place = {
        "SUBMITIT_EXECUTOR": "local",
        "SUBMITIT_LOCAL_GLOBALID": str(rank),
        "SUBMITIT_LOCAL_LOCALID": str(rank),
        "SUBMITIT_LOCAL_NTASKS": str(ranks),
        "SUBMITIT_LOCAL_JOB_NUM_NODES": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "pytest_llmbench.workloads.rank.probe", str(folder)]
    return subprocess.Popen(command, env={**os.environ, **place})


def theirs(collective: str, sizes: Sequence[int], options: argparse.Namespace) -> Curve:
    """Measure with nccl-tests: one process with all GPUs."""
    factor = sizes[1] // sizes[0] if len(sizes) > 1 else 2
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "result.json"
        command = [
            str(options.folder / f"{collective}_perf"), "-g", str(options.gpus), "-b", str(sizes[0]),
            "-e", str(sizes[-1]), "-f", str(factor), "-n", str(options.iterations), "-w", "5", "-c", "1",
            "-J", str(file),
        ]  # fmt: skip
        done = subprocess.run(command, env=_with_nccl(os.environ), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)} ended with status {done.returncode}:\n{done.stdout}{done.stderr}")
        printed = read_nccl_tests(done.stdout, collective)
        curve = read_nccl_tests_json(file.read_text()) if file.exists() else printed[0]
    print(done.stdout.partition("\n")[0])
    if not curve.complete or len(printed) != 1 or len(printed[0].points) != len(curve.points):
        sys.exit(f"{' '.join(command)} is incomplete:\n{done.stdout}")
    return curve


def _with_nccl(environ: Mapping[str, str]) -> dict[str, str]:
    """Let programs find the libraries that came with PyTorch."""
    spec = find_spec("nvidia")
    roots = [] if spec is None else spec.submodule_search_locations or []
    found = [str(path) for root in roots for path in Path(root).glob("*/lib")]
    return {**environ, "LD_LIBRARY_PATH": os.pathsep.join([*found, environ.get("LD_LIBRARY_PATH", "")])}


def compared(mine: Mapping[str, list[Curve]], other: Mapping[str, list[Curve]], least: int) -> Iterator[dict[str, Any]]:
    """Every size from `least` on that both measured, in every place that both offer."""
    for collective, curves in mine.items():
        for size in sorted({point.size for point in curves[0].points if point.size >= least}):
            for place in PLACES:
                a, b = (_busbw(each, size, place) for each in (curves, other[collective]))
                if a and b:
                    yield {
                        "collective": collective, "size": size, "place": place, "ours": statistics.median(a),
                        "theirs": statistics.median(b), "ratio": statistics.median(a) / statistics.median(b),
                    }  # fmt: skip


def _busbw(curves: Sequence[Curve], size: int, place: str) -> list[float]:
    points = [curve.at(size) for curve in curves]
    timings = [getattr(point, place) for point in points if point is not None]
    return [timing.busbw for timing in timings if timing is not None]


def main() -> None:
    """Measure, print the table, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where all_reduce_perf and the others are")
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--collectives", nargs="+", choices=COLLECTIVES, default=list(COLLECTIVES))
    parser.add_argument("--sizes", type=int, nargs="+", default=[16 << 20, 128 << 20, 1 << 30, 8 << 30])
    parser.add_argument("--record", type=Path, default=Path("collectives.json"))
    options = parser.parse_args()
    started = time.monotonic()
    every = [8 << power for power in range(64) if 8 << power <= options.sizes[-1]]
    groups = [([name for name in options.collectives if name == "all_reduce"], every)]
    groups.append(([name for name in options.collectives if name != "all_reduce"], options.sizes))
    mine: dict[str, list[Curve]] = {}
    other: dict[str, list[Curve]] = {}
    for number in range(options.rounds):
        for names, sizes in groups:
            for name in names:
                other.setdefault(name, []).append(theirs(name, sizes, options))
            for name, curve in (ours(names, sizes, options) if names else {}).items():
                mine.setdefault(name, []).append(curve)
            print(f"round {number + 1}: {', '.join(names)} after {time.monotonic() - started:.0f} s", flush=True)
    rows = list(compared(mine, other, options.sizes[0]))
    print(f"{'collective':15}{'size':>8}  {'place':14}{'ours':>9}{'theirs':>9}  GB/s  ratio")
    for row in rows:
        place = row["place"].replace("_", " ")
        numbers = f"{row['ours']:9.2f}{row['theirs']:9.2f}      {row['ratio']:6.3f}"
        print(f"{row['collective']:15}{size_name(row['size']):>8}  {place:14}{numbers}")
    wrong = {name: len(curve.wrong) for name, curves in mine.items() for curve in curves if curve.wrong}
    print(f"lowest ratio {min(row['ratio'] for row in rows):.3f}; wrong values of ours: {wrong or 'none'}")
    record = {
        "gpus": options.gpus, "device": options.device, "rounds": options.rounds, "iterations": options.iterations,
        "seconds": time.monotonic() - started, "rows": rows, "ours": _plain(mine), "theirs": _plain(other),
    }  # fmt: skip
    options.record.write_text(json.dumps(record, indent=1))


def _plain(curves: Mapping[str, Sequence[Curve]]) -> dict[str, Any]:
    return {name: [curve.model_dump(mode="json") for curve in each] for name, each in curves.items()}


if __name__ == "__main__":
    main()
