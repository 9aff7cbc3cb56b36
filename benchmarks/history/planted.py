"""How often a planted regression is found against the history, and another recipe accused.

    python -m benchmarks.history.planted --repeats 50 --seed 1

Each repeat: 20 recipes run on so many earlier days, each run of simulated steps, and once more, one of them slower.
Runs of one recipe differ by 0.2 %, where healthy clusters have 0.15 to 0.35 %; steps by 1 %, neighbours with a
correlation of 0.3. The new session is compared with all earlier ones as `--llmbench-compare-to last:N` does. A repeat
counts if the slower recipe is a FAIL and each of the others a PASS.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.history.simulated import Fleet, keep
from pytest_llmbench.history.baselines import compare_with_baseline
from pytest_llmbench.history.database import History, open_history
from pytest_llmbench.history.wanted import Wanted


def repeat(history: History, seed: str, *, earlier: int, slower: float, wanted: Wanted) -> tuple[str, dict[str, str]]:
    """The recipe that became slower in one repeat, and the verdict on each."""
    fleet = Fleet(seed)
    for day in range(earlier):
        keep(history, fleet.session(day))
    victim = fleet.recipes[sum(map(ord, seed)) % len(fleet.recipes)]
    new = fleet.session(earlier, {victim: slower})
    told = compare_with_baseline(history, fleet.session_id(earlier), [[record] for record in new.values()], wanted)
    return victim, {each.name: str(each.verdict) for each in told}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the repeats; 1 if one of them is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--earlier", type=int, default=20)
    parser.add_argument("--slower", type=float, default=0.02)
    parser.add_argument("--url", help="by default a file of SQLite in a temporary folder")
    asked = parser.parse_args(arguments)
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        history = open_history(asked.url or Path(folder, "history.db"))
        for number in range(asked.repeats):
            victim, verdicts = repeat(
                history, f"s{asked.seed}r{number}", earlier=asked.earlier, slower=asked.slower,
                wanted=Wanted(kind="last", count=asked.earlier),
            )  # fmt: skip
            found = verdicts.pop(victim) == "FAIL"
            accused = sum(verdict == "FAIL" for verdict in verdicts.values())
            undecided = sum(verdict not in {"PASS", "FAIL"} for verdict in verdicts.values())
            counts["found"] += found
            counts["recipes accused"] += accused
            counts["recipes not decided"] += undecided
            counts["right"] += found and not accused and not undecided
        print(f"{history.backend}: {asked.repeats} repeats, 1 of 20 recipes {asked.slower:.1%} slower on the last day")
    print(", ".join(f"{word}: {counts[word]}" for word in ("right", "found", "recipes accused", "recipes not decided")))
    return int(counts["right"] != asked.repeats)


if __name__ == "__main__":
    raise SystemExit(main())
