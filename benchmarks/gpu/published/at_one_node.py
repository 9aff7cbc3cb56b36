"""What the published documents ran, at the scale of one node: all GPUs of this machine, in one visit of nine minutes.

    python benchmarks/gpu/published/at_one_node.py FOLDER [--nccl-tests DIR] [--slurm slurm.tar.xz] [--minutes path=3]
    python benchmarks/gpu/published/at_one_node.py FOLDER --rehearse 8     8 ranks on the CPU, at smoke shapes

The stages, the most wanted first, with their minutes:

    azure        2.6  OPT-125m as Azure's document has it: engines torch and megatron_core, and that with MP 2
    scaling      1.8  OPT-125m on 1 and all GPUs, then 2, 4, ..., the same tokens on each
    all_reduce   0.6  ours and nccl-tests', 8 B to 8 GiB
    collectives  0.7  all_gather, reduce_scatter, alltoall, 4 KiB to 8 GiB: less is no whole part for each of 8 GPUs
    lambda       1.5  OPT-350m as Lambda's document has it
    slice        1.0  four layers of 175B, shared by all GPUs
    path         0.7  both suites through a real Slurm, by whole_path/walk.py: each GPU a node, then all of them one

A stage also has what those before it have left; one that fails or is late ends no other. Where time is short, `azure`,
`scaling`, `lambda` and `slice` start no launch that would not end, and say which; `all_reduce` and `collectives` are
lost when they are late. A launch takes 15 to 25 s before its first step, and 30 to 60 s where it compiles. The path
takes minutes, which the others leave only where all is fast: give it a run of its own, with `--stages path
--minutes path=8.5`. On one GPU there are no stages between GPUs.

FOLDER gets a record of each stage, summary.txt with the table and how each stage ended, and logs.tar.gz. NVLink
multicast is off throughout. Exit status: 0 when every stage ran to its end with all its numbers; 1 when one did not; 2
when nothing could start.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))  # run as a script, this file is in no package

from benchmarks.gpu.machine import machine, source
from benchmarks.gpu.published.plan import MINUTES, Visit, plan
from benchmarks.gpu.published.table import markdown
from benchmarks.gpu.stages import Ended, Stage, environment, ran
from benchmarks.gpu.whole_path.evidence import pack, ways_of_nccl
from benchmarks.gpu.whole_path.host import CHECKOUT, look

# Archives of the whole path are in the one archive of this visit.
_LARGEST = 32 * 2**20
# What these print is their result; of others that ended badly the last lines say why.
_PRINT_ALL = frozenset({"path"})
_LAST_LINES = 8


def main() -> int:
    """Run the stages."""
    options = _options()
    found, folder = look(options.rehearse), options.folder.resolve()
    lacking = _lacking(found.gpus, folder)
    if lacking:
        print(f"cannot start: {lacking}", file=sys.stderr)
        return 2
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="published-", ignore_cleanup_errors=True) as name:
        visit = Visit(machine=found, folder=folder, work=Path(name), nccl_tests=options.nccl_tests, slurm=options.slurm)
        return _run(visit, plan(visit, options.stages, {**MINUTES, **dict(options.minutes)}))


def _lacking(gpus: int, folder: Path) -> str | None:
    if not gpus:
        return "no GPU that PyTorch sees; without one, --rehearse 8"
    if folder.exists() and any(folder.iterdir()):
        return f"{folder} has something in it; name a new folder, so that no record is of another visit"
    return None


def _run(visit: Visit, stages: Sequence[Stage]) -> int:
    """Run the stages; after each, write what was measured so far, and pack what is kept of all."""
    date = datetime.now(UTC).isoformat(timespec="seconds")
    facts = {"date": date, "ranks": visit.machine.gpus, **machine(), **source(CHECKOUT)}
    work, told, broken = visit.work / "stages", list[str](), False
    for ended in ran(stages, work, environment()):
        broken |= not ended.good
        lines = list(_told(ended, work / ended.name))
        print("\n    ".join(lines), flush=True)
        told += ["\n    ".join(lines)]
        text = [*markdown(visit.folder, facts), "", "```text", *told, "```", ""]
        (visit.folder / "summary.txt").write_text("\n".join(text), encoding="utf-8")
        pack(work, visit.folder / "logs.tar.gz", _LARGEST)
    return int(broken)


def _told(ended: Ended, folder: Path) -> Iterator[str]:
    """Yield how a stage ended, which ways NCCL took, and what it printed where that says more than its record."""
    yield str(ended)
    yield from ways_of_nccl(folder / "nccl")
    terminal = folder / "terminal.txt"
    printed = terminal.read_text(encoding="utf-8", errors="replace").splitlines() if terminal.exists() else []
    if ended.name in _PRINT_ALL:
        yield from printed
    elif not ended.good:
        yield from printed[-_LAST_LINES:]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    parser.add_argument("folder", type=Path, help="where records, table and logs go; a new one")
    parser.add_argument(
        "--nccl-tests", type=_absolute, metavar="DIR", help="folder with all_reduce_perf and the others"
    )
    parser.add_argument(
        "--slurm", type=_absolute, help="folder or archive of tools/slurm/bundle.sh; else this machine's"
    )
    parser.add_argument("--stages", type=_stages, default=list(MINUTES), help="separated by commas; by default all")
    parser.add_argument("--minutes", type=_minutes, nargs="+", default=[], metavar="STAGE=MINUTES")
    parser.add_argument("--rehearse", type=int, metavar="N", help="N ranks on the CPU, at smoke shapes")
    return parser.parse_args()


def _absolute(text: str) -> Path:
    return Path(text).resolve()


def _stages(text: str) -> list[str]:
    return [_known(name) for name in text.split(",")]


def _minutes(text: str) -> tuple[str, float]:
    name, _, minutes = text.partition("=")
    try:
        return _known(name), float(minutes)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: write STAGE=MINUTES, such as path=3") from error


def _known(stage: str) -> str:
    if stage not in MINUTES:
        raise argparse.ArgumentTypeError(f"no stage {stage}; there are {', '.join(MINUTES)}")
    return stage


if __name__ == "__main__":
    sys.exit(main())
