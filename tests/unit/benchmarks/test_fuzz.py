"""Whatever is read from elsewhere: damaged samples make no reader fail, and a torn line makes no number."""

from collections.abc import Sequence
from random import Random

import pytest

from benchmarks.fuzz.__main__ import Tally, campaign, made, made_up, table
from benchmarks.fuzz.inputs import Torn, torn
from benchmarks.fuzz.targets import Target, targets
from pytest_llmbench.readers.log import READERS


@pytest.fixture(scope="session")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Target]:
    return targets(tmp_path_factory.mktemp("fuzz"))


def test_no_reader_fails(known: dict[str, Target]) -> None:
    """A short campaign, with another seed than the long ones; each reader that is announced takes part.

    The time that an input takes depends on the other workers' load: the long campaigns report it.
    """
    tallies = campaign(known, 7, 20 * len(known))
    found = {name: set(tally.found) - {"takes more than a second"} for name, tally in tallies.items()}
    assert {name: faults for name, faults in found.items() if faults} == {}
    assert {f"log {name}" for name in READERS.names()} <= set(tallies)
    assert all(tally.tried for tally in tallies.values())


def test_an_input_is_known_by_its_number(known: dict[str, Target]) -> None:
    for target in known.values():
        assert made(target, 1, "7") == made(target, 1, "7")
    assert made(known["step log"], 1, "t7") == made(known["step log"], 1, "t7") != made(known["step log"], 2, "t7")


def test_each_way_to_tear_a_line() -> None:
    log = b"one 1\ntwo 2\nthree 3\n"
    kinds = {(each := torn(log, Random(number))).kind: each for number in range(50)}
    assert set(kinds) == {"cut off", "hole", "another line"}
    assert all(each.data not in each.whole for each in kinds.values())


def _reckless(data: bytes) -> Sequence[float]:
    if b"bad" in data:
        raise KeyError("bad")
    return [float(word) for word in data.split() if word.isdigit()]


def test_what_is_wrong_is_found() -> None:
    """An error that may not be raised, and a number that a cut line made."""
    target = Target(
        name="reckless", seeds=[b"bad 12345\n", b"12345"], read=_reckless, torn=[b"12345\n" * 3], numbers=set
    )  # fmt: skip
    tally = campaign({"reckless": target}, 1, 200)["reckless"]
    assert {"raises KeyError: 'bad'", "makes a number of a torn line (cut off)"} <= set(tally.found)
    assert made_up(target, Torn("cut off", b"12345\n123", (b"12345\n",))) == {123.0}
    assert any("reckless: " in row for row in table({"reckless": tally, "idle": Tally()}))
