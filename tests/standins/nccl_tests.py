"""A stand-in for NVIDIA's nccl-tests: takes their options, and prints and writes what they do, of a made-up machine.

A program of the name of a real one calls it (see `install`). How it behaves besides is in STANDIN_NCCL_TESTS, words
such as `old wrong noise`:

    old        prints as before version 2.13: without the column `root`, deviations in place of wrong elements
    no_json    does not know -J
    wrong      three elements of the largest message are wrong
    truncated  ends in the middle of the row of the largest message, with status 0
    noise      NCCL's own lines between the rows
    crash      fails before it measures anything, with status 3

STANDIN_RANKS is the number of processes that MPI started; only the first prints. Like the real ones it ends with
status 0 after an option that it does not know, having measured nothing. STANDIN_GB_S is the bus bandwidth of large
messages; with NCCL_DEBUG=INFO NCCL names its variables, and prints the lines of the file STANDIN_LINES.
"""

import getopt
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

# Made up: 40 us for the smallest message, and links of 100 GB/s.
LATENCY_US = 40.0
LINK_GB_S = float(os.environ.get("STANDIN_GB_S", "100"))
_OPTIONS = "t:g:b:e:i:f:n:m:w:N:p:I:K:c:o:d:r:z:y:T:hG:C:a:R:x:D:V:S:M:u:"
_DEFAULTS = {
    "t": "1", "g": "1", "b": "33554432", "e": "33554432", "f": "1", "n": "20", "w": "1", "c": "1", "d": "float",
}  # fmt: skip
_IN_PARTS = ("all_gather", "reduce_scatter", "alltoall")
_NO_REDOP = ("all_gather", "alltoall", "broadcast", "sendrecv")
_WIDTH = {"float": 4, "bfloat16": 2}


def install(folder: Path, *collectives: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for collective in collectives:
        program = folder / f"{collective}_perf"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -IS "{__file__}" {program.name} "$@"\n')
        program.chmod(0o755)
    return folder


def busbw(collective: str, size: int, ranks: int) -> float:
    return size / 1e3 / time_us(collective, size, ranks) * _factor(collective, ranks)


def time_us(collective: str, size: int, ranks: int) -> float:
    return LATENCY_US + size / 1e3 / LINK_GB_S * _factor(collective, ranks)


def _factor(collective: str, ranks: int) -> float:
    factor = (ranks - 1) / ranks
    return {"all_reduce": 2 * factor}.get(collective, factor if collective in _IN_PARTS else 1.0)


def main(program: str, argv: list[str]) -> int:
    modes = os.environ.get("STANDIN_NCCL_TESTS", "").split()
    known = _OPTIONS if {"old", "no_json"} & set(modes) else f"{_OPTIONS}J:"
    try:
        given, rest = getopt.gnu_getopt(argv, known)
    except getopt.GetoptError as error:
        print(f"invalid option '{error.opt}'")
        return _usage(program, known)
    if ("-h", "") in given:
        return _usage(program, known)
    assert not rest, rest
    options = {**_DEFAULTS, **{name[1:]: value for name, value in given}}
    if "crash" in modes:
        print("vm: Test NCCL failure common.cu:1005 'unhandled system error (run with NCCL_DEBUG=INFO for details)'")
        return 3
    if int(options["b"]) > int(options["e"]):
        print(f"invalid sizes for 'minbytes' and 'maxbytes': {options['b']} > {options['e']}", file=sys.stderr)
        return 255
    return _measure(program.removesuffix("_perf"), options, modes)


def _usage(program: str, known: str) -> int:
    output = "\n\t[-J,--output_file <file> write output to filepath]" if "J" in known else ""
    print(f"USAGE: {program} \n\t[-g,--ngpus <gpus per thread>] {output}\n\t[-h,--help]")
    return 0


def _measure(collective: str, options: dict[str, str], modes: list[str]) -> int:
    own = int(options["t"]) * int(options["g"])
    ranks = own * int(os.environ.get("STANDIN_RANKS", "1"))
    rows = list(_rows(collective, options, ranks))
    old, errors = "old" in modes, 1 if "wrong" in modes else 0
    if os.environ.get("NCCL_DEBUG") == "INFO":
        ways = (f"Channel 00/0 : {rank}[0] -> {(rank + 1) % ranks}[0] via P2P/IPC" for rank in range(ranks))
        usual = (f"vm:1844:{1844 + rank} [0] NCCL INFO {way}" for rank, way in enumerate(ways))
        recorded = os.environ.get("STANDIN_LINES")
        known = Path(recorded).read_text(encoding="utf-8").splitlines() if recorded else list(usual)
        head = known[-1].partition("NCCL INFO ")[0]
        steering = {name: value for name, value in os.environ.items() if name.startswith("NCCL_")}
        steering = {name: value for name, value in steering.items() if not name.startswith("NCCL_DEBUG")}
        print(*known, *(f"{head}NCCL INFO {n} set by environment to {v}." for n, v in steering.items()), sep="\n")
    for line in _head(collective, options, ranks, old=old):
        print(line)
    for size, count in rows:
        wrong = 3 if errors and size == rows[-1][0] else 0
        line = _row(collective, options, (size, count, wrong), ranks, old=old)
        if "truncated" in modes and size == rows[-1][0]:
            print(line[:-25], end="")
            return 0
        if "noise" in modes:
            print(f"vm:1844:1844 [0] NCCL INFO Launch mode Parallel {size} {count}")
        print(line)
    average = sum(busbw(collective, size, ranks) for size, _ in rows) / max(1, len(rows))
    print(f"# Out of bounds values : {errors} {'FAILED' if errors else 'OK'}\n# Avg bus bandwidth    : {average:g} \n#")
    if not old:
        print(f"# Collective test concluded: {collective}_perf\n#")
    if "J" in options:
        results = [_result(collective, options, (*row, 3 if errors and row == rows[-1] else 0), ranks) for row in rows]
        _write(options, results, [f"{collective}_perf", *sys.argv[2:]], own, ranks, errors, average)
    return errors


def _rows(collective: str, options: dict[str, str], ranks: int) -> Iterator[tuple[int, int]]:
    """Size and count."""
    width, size = _WIDTH[options["d"]], int(options["b"])
    while size <= int(options["e"]):
        count = size // width
        if collective in _IN_PARTS:
            count = count // ranks // (16 // width) * (16 // width)
        yield count * width * (ranks if collective in _IN_PARTS else 1), count
        size *= int(options["f"])


def _head(collective: str, options: dict[str, str], ranks: int, *, old: bool) -> Iterator[str]:
    if not old:
        yield "# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809"
        yield f"# Collective test starting: {collective}_perf"
    yield f"# nThread {options['t']} nGpus {options['g']} minBytes {options['b']} maxBytes {options['e']}"
    yield "#\n# Using devices"
    for rank in range(ranks):
        group = "" if old else "Group  0 "
        yield f"#  Rank {rank:2} {group}Pid   1844 on         vm device {rank:2} [0000:00:06] NVIDIA H200"
    root, wrong = ("", "error") if old else ("    root", "#wrong")
    side = f"     time   algbw   busbw  {wrong}"
    yield f"#\n#       size         count      type   redop{root}{side}{side}"
    yield f"#        (B)    (elements)                      {2 * '         (us)  (GB/s)  (GB/s)    '}"


def _row(collective: str, options: dict[str, str], point: tuple[int, int, int], ranks: int, *, old: bool) -> str:
    size, count, wrong = point
    time, bus = time_us(collective, size, ranks), busbw(collective, size, ranks)
    error = "4e+01" if wrong and old else "0e+00" if old else wrong
    side = f"  {_float(time, 7)}  {_float(size / 1e3 / time, 6)}  {_float(bus, 6)}  {error:>6}"
    unchecked = f"{side[:-6]}{'N/A':>6}" if collective in {"alltoall", "sendrecv"} else side
    redop = "none" if collective in _NO_REDOP else "sum"
    if old:
        redop = "" if collective in _NO_REDOP else redop
        return f"{size:12}  {count:12}  {options['d']:>8}  {redop:>6}{side}{unchecked}"
    return f"{size:12}  {count:12}  {options['d']:>8}  {redop:>6}  {-1:6}{side}{unchecked}"


def _float(value: float, width: int) -> str:
    texts = [f"{value:.2f}", f"{value:.1f}", f"{value:.0f}", f"{value:.1e}"]
    return next(text for text in texts if len(text) <= width).rjust(width)


def _result(collective: str, options: dict[str, str], point: tuple[int, int, int], ranks: int) -> dict[str, object]:
    size, count, wrong = point
    time, bus = time_us(collective, size, ranks), busbw(collective, size, ranks)
    side = {"time": time, "alg_bw": size / 1e3 / time, "bus_bw": bus, "nwrong": float(wrong)}
    in_place = {**side, "nwrong": None} if collective in {"alltoall", "sendrecv"} else side
    return {
        "size": size, "count": count, "type": options["d"], "redop": "none" if collective in _NO_REDOP else "sum",
        "root": "    -1", "out_of_place": side, "in_place": in_place, "actual_iterations": 20, "experiment_name": "",
    }  # fmt: skip


def _write(
    options: dict[str, str], results: list[dict[str, object]], args: list[str], own: int, ranks: int, errors: int,
    average: float,
) -> None:  # fmt: skip
    config = {
        "nthreads": int(options["t"]), "ngpus": int(options["g"]),
        "devices": [{"rank": rank, "hostname": "vm"} for rank in range(0, ranks, own)],
    }  # fmt: skip
    document = {
        "version": 1, "start_time": "2026-11-21 10:00:00", "args": args,
        "env": [f"{name}={value}" for name, value in os.environ.items()], "nccl_version": 22809, "config": config,
        "results": results, "out_of_bounds": {"count": errors, "okay": str(not errors).lower()},
        "average_bus_bandwidth": {"bandwidth": average, "okay": "unchecked"}, "end_time": "2026-11-21 10:00:01",
    }  # fmt: skip
    with Path(options["J"]).open("x") as file:  # the real ones never overwrite
        json.dump(document, file)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
