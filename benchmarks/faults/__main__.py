"""Break things on purpose on a real Slurm, and compare what comes of each with what must.

    python -m benchmarks.faults [--repeat N] [--seed S] [--only NAME ...] [--lines FILE]

It needs the Slurm of tools/slurm/up.sh, alone: nodes are set down and daemons are killed. LLMBENCH_SLURM,
LLMBENCH_SLURM_PORT and ACCOUNTING are those of that Slurm. The seed decides after how many steps faults strike, another
number in each repetition. Every line of a fault is printed as JSON. The exit status is 1 unless all lines are sound.

A fault is sound if every one of its expectations is met: the verdict of its test, the kind of problem in its record,
the words in the message and on the terminal, the exit status of pytest, no metric of a run that cannot be judged, no
job more than its record explains, and, a minute after the end, no job in the queue and no process of the session.
Campaigns on several Slurms of one machine may be made side by side, each with a file of its own.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.faults.declared import FAULTS
from benchmarks.faults.judging import Line, Seen, judge
from benchmarks.faults.scenes import SCENES, Fault

# Characters of what is shown of a fault that is not sound.
MOST = 3000
FAULT_OF = {fault.name: fault for fault in FAULTS}


def repetition(folder: Path, faults: list[Fault], seed: str, tell: Callable[[str], None]) -> list[Line]:
    """Let every fault strike once; each line is told as soon as it is known."""
    lines = []
    for name, play in SCENES.items():
        of_scene = [fault for fault in faults if fault.scene == name]
        if not of_scene:
            continue
        began = time.monotonic()
        told = set[str]()
        # The same moments, whichever other scenes are played.
        for of_session in play(folder / name, of_scene, random.Random(f"{seed}:{name}")):
            lines += [line_of(FAULT_OF[each], seen, tell) for each, seen in of_session.items()]
            told |= {*of_session}
        silent = [fault for fault in of_scene if fault.name not in told]
        lines += [line_of(fault, "the scene says nothing of it", tell) for fault in silent]
        print(f"# {name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return lines


def line_of(fault: Fault, seen: Seen | str, tell: Callable[[str], None]) -> Line:
    """Judge what came of a fault, and tell it; of one that is not sound, what pytest said."""
    line = judge(fault.name, fault.expected, seen)
    tell(line.to_json())
    if line.outcome != "sound" and isinstance(seen, Seen):
        print(f"# {fault.name}: {seen.message[:MOST]}\n{seen.output[-MOST:]}", file=sys.stderr, flush=True)
    return line


def main() -> int:
    """Repeat all faults, and write their lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", help="a fault, or a scene; may be given several times")
    parser.add_argument("--lines", type=Path, help="append each line to this file as well")
    given = parser.parse_args()
    only = set(given.only or ())
    faults = [fault for fault in FAULTS if not only or {fault.name, fault.scene} & only]
    if unknown := only - {word for fault in faults for word in (fault.name, fault.scene)}:
        parser.error(f"no fault and no scene is called {', '.join(sorted(unknown))}")

    def tell(text: str) -> None:
        """At once: a campaign may be cut off."""
        print(text, flush=True)
        if given.lines:
            with given.lines.open("a", encoding="utf-8") as file:
                file.write(f"{text}\n")

    lines = list[Line]()
    for number in range(given.repeat):
        with tempfile.TemporaryDirectory(prefix="llmbench-faults-", ignore_cleanup_errors=True) as name:
            (root := Path(name) / str(number)).mkdir()
            lines += repetition(root, faults, f"{given.seed}:{number}", tell)
    sound = sum(line.outcome == "sound" for line in lines)
    print(f"# {sound} of {len(lines)} lines are sound", file=sys.stderr)
    return int(sound < len(lines))


if __name__ == "__main__":
    sys.exit(main())
