"""benchmarks/swaps.py: real ranks, a few times."""

from __future__ import annotations

import subprocess
import sys

from tests.docs.documents import CHECKOUT


def test_a_flipped_bit_in_one_of_eight_ranks_is_named() -> None:
    """Wherever it flips; and no clean training accuses anybody."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.swaps", "2", "9", "8"],
        cwd=CHECKOUT, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines() if "/" in line]
    runs = {row[1]: row for row in rows[1:]}
    assert runs["clean"] == ["2", "clean", "0 / 0 / 0", "0", "0"]
    assert set(runs) == {"clean", "gradient", "weight", "activation"}
    for place in ("gradient", "weight", "activation"):
        count, _, named, missed, innocent = runs[place]
        assert (missed, innocent) == ("0", "0"), done.stdout
        assert sum(map(int, named.split(" / "))) == int(count)
