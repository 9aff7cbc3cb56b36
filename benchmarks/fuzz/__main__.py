"""Whatever others write makes no reader fail: `python -m benchmarks.fuzz --inputs 1000000 --seed 1`.

Gives damaged samples to every reader of logs, of programs' outputs and of files, in turns of a moment each. Found is an
error that a reader may not raise, an input that takes more than a second of CPU time, and a number that a torn line
made: one cut off at the end of its file, with a hole of NULs, or with another line in it. `--show TARGET:NUMBER` gives
one input again. Public samples are taken from the folder that LLMBENCH_SAMPLES names.
"""

from __future__ import annotations

import argparse
import resource
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import NoReturn

from benchmarks.fuzz.inputs import Torn, damaged, torn
from benchmarks.fuzz.targets import Target, targets

_TURN_S = 0.25
_SLOW_S = 1.0
_HANGS_S = 30.0
_EXAMPLES = 3
_MOST_MEMORY = 2 << 30


class Hangs(BaseException):
    """An input was given up; not to be caught by what catches every `Exception`."""


@dataclass(slots=True)
class Tally:
    """Counts of a target's inputs; `found` has the numbers of the first by what went wrong."""

    tried: int = 0
    torn: int = 0
    seconds: float = 0.0
    slowest_s: float = 0.0
    found: dict[str, list[str]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def note(self, what: str, number: str) -> None:
        """Count what went wrong."""
        self.counts[what] += 1
        known = self.found.setdefault(what, [])
        if len(known) < _EXAMPLES:
            known.append(number)


def main(words: Sequence[str]) -> int:
    """Run a campaign, or show one input; 1 where something was found."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="of all targets together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="targets with this in their name")
    parser.add_argument("--show", metavar="TARGET:NUMBER", help="print one input and what becomes of it")
    given = parser.parse_args(words)
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))  # then more is an error, which is found
    with TemporaryDirectory() as folder:
        known = {name: each for name, each in targets(Path(folder)).items() if given.only in name}
        if given.show:
            name, _, number = given.show.rpartition(":")
            show(known[name], given.seed, number)
            return 0
        tallies = campaign(known, given.seed, given.inputs)
    print("\n".join(table(tallies)))
    return int(any(each.found for each in tallies.values()))


def show(target: Target, seed: int, number: str) -> None:
    """Print an input, and the numbers that only its torn line has."""
    data = made(target, seed, number)
    print(repr(data)[:20_000])
    print(repr(target.read(data))[:2000])
    if number.startswith("t"):
        given = torn_of(target, seed, number)
        print(given.kind, *(line for line in data.splitlines() if line not in given.whole[0].splitlines()), sep="\n")
        print(made_up(target, given))


def torn_of(target: Target, seed: int, number: str) -> Torn:
    """The torn log of a number."""
    rng = Random(f"{seed}:{target.name}:{number}")
    return torn(rng.choice(target.torn), rng)


def made(target: Target, seed: int, number: str) -> bytes:
    """The input of a number; with a `t` before it, a torn log."""
    if number.startswith("t"):
        return torn_of(target, seed, number).data
    return damaged(target.seeds, Random(f"{seed}:{target.name}:{number}"), document=target.document)


def made_up(target: Target, given: Torn) -> set[float]:
    """Numbers of a torn log that none of the logs has which may have been meant."""
    if not (found := target.numbers(target.read(given.data))):
        return set()
    return found.difference(*(target.numbers(target.read(each)) for each in given.whole))


def campaign(known: Mapping[str, Target], seed: int, inputs: int) -> dict[str, Tally]:
    """Give inputs to targets in turns, until there were so many."""
    tallies = {name: Tally() for name in known}
    signal.signal(signal.SIGVTALRM, _give_up)
    while (tried := sum(each.tried for each in tallies.values())) < inputs:
        for name, target in known.items():
            tally, began = tallies[name], time.process_time()
            most = tally.tried + max(1, (inputs - tried) // len(known))
            while time.process_time() - began < _TURN_S and tally.tried < most:
                _try(target, tally, seed)
            tally.seconds += time.process_time() - began
    return tallies


def _try(target: Target, tally: Tally, seed: int) -> None:
    tear = bool(target.torn) and tally.tried % 2 == 1
    number = f"t{tally.tried}" if tear else str(tally.tried)
    data = made(target, seed, number)
    tally.tried += 1
    tally.torn += tear
    began = time.process_time()
    signal.setitimer(signal.ITIMER_VIRTUAL, _HANGS_S)
    try:
        target.read(data)
    except Hangs:
        tally.note("hangs", number)
        return
    except Exception:  # noqa: BLE001 - an error that may not be raised is what is looked for
        lines = traceback.format_exc().strip().splitlines()
        tally.note(f"raises {lines[-1][:100]}", number)
        return
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        took = time.process_time() - began
        tally.slowest_s = max(tally.slowest_s, took)
    if took > _SLOW_S:
        tally.note("takes more than a second", number)
    if tear and made_up(target, given := torn_of(target, seed, number)):
        tally.note(f"makes a number of a torn line ({given.kind})", number)


def _give_up(*_: object) -> NoReturn:
    raise Hangs


def table(tallies: Mapping[str, Tally]) -> list[str]:
    """A row for each target, the sum, and what was found."""
    rows = ["| Target | Inputs | Torn | a second | Slowest, ms |", "|---|---|---|---|---|"]
    for name, each in tallies.items():
        rows.append(
            f"| {name} | {each.tried} | {each.torn} | {each.tried / max(each.seconds, 1e-9):.0f} | "
            f"{1000 * each.slowest_s:.0f} |"
        )
    seconds = sum(each.seconds for each in tallies.values())
    tried = sum(each.tried for each in tallies.values())
    rows.append(
        f"| all | {tried} | {sum(each.torn for each in tallies.values())} | {tried / max(seconds, 1e-9):.0f} | |"
    )
    rows += [f"{name}: {each.counts[what]} × {what}: {', '.join(numbers)}"
             for name, each in tallies.items() for what, numbers in each.found.items()]  # fmt: skip
    return rows


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
