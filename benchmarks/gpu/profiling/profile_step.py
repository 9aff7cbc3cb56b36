"""Where the time of one variant's step goes on the GPU, part by part, beside the least it could take.

    python benchmarks/gpu/profiling/profile_step.py --row opt125m --variant torch --gpus 1 --out DIR

Rank 0 profiles three steps after eight of warm-up. `DIR` gets `trace.json.gz`, for chrome://tracing or Perfetto,
`profile.json` with the numbers, and what the ranks printed. Parts are told by kernel names, and matrix products of the
output layer by their shapes: look at the largest kernels below the table before believing it. The profiler slows the
host, so idle time is an upper bound where the profiled step is slower than the ones before.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))  # run as a script, this file is in no package

from benchmarks.gpu.profiling.floors import RULES, floors
from benchmarks.gpu.profiling.kernels import Breakdown, breakdown, read_trace
from benchmarks.gpu.profiling.profiled import AFTER, FACTS, STEPS, VARIABLE
from benchmarks.gpu.training.launch import launch, owner
from benchmarks.gpu.training.measuring import measured
from benchmarks.gpu.training.records import Launch
from benchmarks.gpu.training.rows import Case, Choice, load, parse_options
from pytest_llmbench.core.errors import ConfigError

# Padding of the vocabulary that anybody would choose.
_MULTIPLES = (1, 8, 16, 32, 64, 128, 256, 512, 1024)


def main() -> None:
    """Profile one cell of the table."""
    options = _parse()
    choice = Choice(
        rows=[options.row],
        variants=[options.variant],
        gpus=[options.gpus],
        steps=AFTER + STEPS + 2,
        scale="smoke" if options.smoke else "full",
        device="cpu" if options.smoke else "cuda",
        options=parse_options(options.option),
    )
    cases = list(choice.cases())
    if not cases:
        raise ConfigError(f"row {options.row} has no variant {options.variant} on {options.gpus} GPUs")
    options.out.mkdir(parents=True, exist_ok=True)
    found = _run(cases[0], options)
    if found.error is not None:
        raise ConfigError(f"{found.error}: see {options.out}/rank-0.log")
    facts = json.loads((options.out / FACTS).read_text(encoding="utf-8"))
    (options.out / FACTS).unlink()  # they are in profile.json, too
    with gzip.open(options.out / "trace.json.gz", "rb") as file:
        kernels = read_trace(json.load(file))
    if not kernels:
        raise ConfigError(
            f"no kernel ran on a GPU in the profiled steps; {options.out}/trace.json.gz has the CPU's part"
        )
    parts = breakdown(kernels, vocabulary(cases[0]))
    least = floors(cases[0].recipe, options.gpus, flops_per_s=facts["flops_per_s"], bytes_per_s=facts["bytes_per_s"])
    usual_s = statistics.median(found.step_seconds[AFTER // 2 : AFTER])
    told = {"case": str(cases[0]), "facts": facts, "usual_step_s": usual_s, "floors_s": least, **asdict(parts)}
    (options.out / "profile.json").write_text(json.dumps(told, indent=1), encoding="utf-8")
    print("\n".join(report(cases[0], parts, least, facts, usual_s)))


def vocabulary(case: Case) -> set[int]:
    """Sizes that the vocabulary may have on one rank, padded or not."""
    whole, ranks = case.recipe.model.vocab_size, case.recipe.parallelism.tensor
    return {math.ceil(whole / (step * ranks)) * step for step in _MULTIPLES}


def report(
    case: Case, parts: Breakdown, least: Mapping[Any, float], facts: Mapping[str, float], usual_s: float
) -> Iterator[str]:
    """Yield the table, what it is held against, and the largest kernels, as Markdown."""
    profiled_s = facts["seconds"] / STEPS
    yield f"{case}: a step of {1e3 * usual_s:.1f} ms without the profiler, {1e3 * profiled_s:.1f} ms with it."
    yield (
        f"Products at {facts['flops_per_s'] / 1e12:.0f} TFLOP/s and copies at {facts['bytes_per_s'] / 1e9:.0f} GB/s, "
        "both measured by the same process.\n"
    )
    yield "| Part | ms a step | Share of the window | Least, ms | Times the least |"
    yield "|---|---|---|---|---|"
    shown: list[tuple[str, float]] = sorted(parts.by_part.items(), key=lambda item: -item[1])
    shown += [("communication that nothing hides", parts.exposed_s), ("idle", parts.idle_s)]
    for name, seconds in shown:
        floor, taken = least.get(name), seconds / STEPS
        bound = f"{1e3 * floor:.2f} | {taken / floor:.2f}" if floor is not None else " | "
        yield f"| {name} | {1e3 * taken:.2f} | {100 * seconds / parts.window_s:.1f} % | {bound} |"
    yield f"| all | {1e3 * parts.window_s / STEPS:.2f} | 100 % | {1e3 * sum(least.values()):.2f} | |\n"
    yield from (f"- Least of {name}: {rule}." for name, rule in RULES.items())
    yield "\n| Kernel | Part | ms a step | Launches a step |"
    yield "|---|---|---|---|"
    for name, part, seconds, count in parts.largest:
        yield f"| `{name[:110]}` | {part} | {1e3 * seconds / STEPS:.2f} | {count / STEPS:.0f} |"


def _run(case: Case, options: argparse.Namespace) -> Launch:
    """Train with the profiler, and keep what the ranks printed."""
    with tempfile.TemporaryDirectory(prefix="profile-") as name, owner(Path(name)) as waits:
        folder = Path(name) / "run"
        folder.mkdir()
        work = case.task(folder)
        env = {VARIABLE: f"{work.entry}={options.out.resolve()}"}
        wrapped = replace(work, entry="benchmarks.gpu.profiling.profiled:train")
        ended = launch(wrapped, case.topology, folder, waits=waits, deadline_s=options.deadline_s, env=env)
        shutil.copy(folder / "rank-0.log", options.out / "rank-0.log")
        return measured(case, folder, ended, turn=1, usual={})


def _parse() -> argparse.Namespace:
    rows, variants = (sorted(set(each)) for each in zip(*(name.rsplit("-", 1) for name in load("full")), strict=True))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", required=True, help=f"of {', '.join(rows)}")
    parser.add_argument("--variant", required=True, help=f"of {', '.join(variants)}")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True, help="folder of what is found")
    parser.add_argument("--option", action="append", default=[], metavar="VARIANT.KEY=VALUE")
    parser.add_argument("--smoke", action="store_true", help="tiny models on CPU ranks, which have no kernels")
    parser.add_argument("--deadline-s", type=float, default=300.0)
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except ConfigError as error:
        sys.exit(f"error: {error}")
