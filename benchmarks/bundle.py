"""Alter a bundle in many places, one after the other, and see that each of them is refused; time its verification.

    python benchmarks/bundle.py SESSION [--alterations 10000] [--seed 1]

Half of the alterations are of one bit, half of one byte. Exits with 1 if one is accepted.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from securesystemslib.signer import CryptoSigner, SSlibKey

from pytest_llmbench.evidence.archive import BundleError
from pytest_llmbench.evidence.bundle import make_bundle, open_bundle
from pytest_llmbench.evidence.verify import verify


def main() -> int:
    """Bundle, alter, verify, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("session", type=Path)
    parser.add_argument("--alterations", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    key = CryptoSigner.generate_ed25519()
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "session.llmbench.tar"
        began = time.perf_counter()
        make_bundle(options.session, path, key)
        bundled = time.perf_counter()
        told = verify(path, [key.public_key])
        done = time.perf_counter()
        size = path.stat().st_size
        print(f"bundled in {bundled - began:.2f} s: {size} bytes, {told.files} files")
        print(f"verified in {done - bundled:.2f} s: {told.runs} runs, {told.numbers} numbers, {told.verdicts} verdicts")
        print(f"verified: {told.verified}")
        accepted = alter(path, key.public_key, options.alterations, random.Random(options.seed))
    print(f"{options.alterations} alterations, {len(accepted)} accepted: {accepted[:10]}")
    return int(bool(accepted) or not told.verified)


def alter(path: Path, key: SSlibKey, alterations: int, chance: random.Random) -> list[int]:
    """Alter a bundle again and again; return the places where that was accepted."""
    whole, accepted = path.read_bytes(), []
    places = chance.sample(range(len(whole)), min(alterations, len(whole)))
    places += [chance.randrange(len(whole)) for _ in range(alterations - len(places))]
    for number, place in enumerate(places):
        altered = bytearray(whole)
        altered[place] ^= 1 << chance.randrange(8) if number % 2 else chance.randrange(1, 256)
        path.write_bytes(altered)
        try:
            with open_bundle(path, [key]):
                accepted.append(place)
        except BundleError:
            continue
    return accepted


if __name__ == "__main__":
    sys.exit(main())
