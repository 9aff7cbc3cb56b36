"""Damaged logs: how they are made, and what they may not become."""

import re
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from benchmarks.mutations.__main__ import by_kind, by_reader, main
from benchmarks.mutations.campaign import READERS, Campaign
from benchmarks.mutations.damage import KINDS, damaged
from benchmarks.mutations.forms import EVENTS, TEXT
from benchmarks.mutations.judging import Judgement, too_good
from pytest_llmbench.engines.base import get_engine
from pytest_llmbench.engines.external import External
from pytest_llmbench.readers.log import read_log
from pytest_llmbench.readers.patterns import FAILURES
from tests.support import samples
from tests.support.samples import DATA, readable

MUTANTS = 20
EVENT_FILE = next(DATA.glob("nemo/events.out.tfevents.*")).read_bytes()


def judgement(**numbers: tuple[float, str]) -> Judgement:
    return Judgement(verdict="judged", numbers=numbers)


def test_a_log_is_the_sum_of_its_pieces() -> None:
    """What is not damaged stays as it is, and a number that is put back leaves the piece as it was."""
    text = (DATA / "logs" / "megatron_lm_2_ranks.log").read_bytes()
    for form, data in ((TEXT, text), (EVENTS, EVENT_FILE)):
        pieces = form.split(data)
        assert b"".join(pieces) == data
        numbers = [(piece, number) for piece in pieces for number in form.numbers(piece)]
        assert len(numbers) > 100
        assert all(form.put(piece, number, number.text) == piece for piece, number in numbers if form is TEXT)


def test_a_mutant_is_known_by_its_number() -> None:
    first, again, other = (Campaign("megatron_lm", seed).mutant(7) for seed in (1, 1, 2))
    assert (first.kind, first.files) == (again.kind, again.files)
    assert (first.kind, first.files) != (other.kind, other.files)


def test_every_kind_of_damage_is_done() -> None:
    campaign = Campaign("megatron_lm", 1)
    subject = next(each for each in campaign._subjects if not each.bare)
    log = subject.log("megatron_lm_2_ranks.log", [])
    tried = {damaged(log, Random(number))[0] for number in range(600)}
    assert tried == set(KINDS)
    assert len(KINDS) >= 24


def test_less_time_and_more_speed_flatter() -> None:
    whole = judgement(throughput=(100.0, "words/s"), step_time=(1.0, "s"), loss_drop=(0.0, "nat"))
    assert too_good(whole, judgement(throughput=(101.0, "words/s"))) == ["throughput"]
    assert too_good(whole, judgement(step_time=(0.99, "s"))) == ["step_time"]
    assert too_good(whole, judgement(mfu=(1.0, "%"))) == ["mfu"]
    assert too_good(whole, judgement(throughput=(100.9, "words/s"), step_time=(2.0, "s"), loss_drop=(0.0, "nat"))) == []
    assert too_good(Judgement(verdict="failed", numbers={}), judgement()) == ["verdict"]


# Only Lambda's own logs have the closing lines that these two judge a run by.
_NEEDS = {"deepspeed_chat": "lambda/opt-350m_1_1xN_batch0001.log", "eval_batch": "lambda/opt-350m_1_1xN_batch0001.log"}


@pytest.mark.parametrize("reader", readable(READERS, lambda reader: _NEEDS.get(reader, "logs/nemo_2.log")))
def test_no_damage_crashes_and_none_is_judged_without_proof(reader: str) -> None:
    campaign = Campaign(reader, 3)
    assert any(subject.whole.verdict == "judged" for subject in campaign._subjects)
    tally = campaign.run(range(MUTANTS))
    assert tally.tried.total() == MUTANTS
    assert tally.judged.total() > 0
    assert not tally.crashed, tally.examples
    assert not tally.unproved, tally.examples
    assert not tally.slow, tally.examples
    assert not tally.missed, tally.examples


@pytest.mark.parametrize("reader", ["megatron_lm", "metaseq", "nemo", "deepspeed_chat"])
def test_damaged_logs_say_the_same_however_failures_are_searched_for(reader: str, tmp_path: Path) -> None:
    campaign = Campaign(reader, 5)
    engine = get_engine("nemo_torchrun" if reader == "nemo" else reader)
    assert isinstance(engine, External)
    words = engine.log_reader()
    at_once = replace(words.needles, always=(*words.needles.always, *FAILURES))
    for files in (campaign.mutant(number).files for number in range(MUTANTS)):
        paths = [tmp_path / name for name in sorted(files)]
        for path in paths:
            path.write_bytes(files[path.name])
        said = [repr(read_log(paths, words.dialect(), words.claims, each)) for each in (words.needles, at_once)]
        assert said[0] == said[1]


def test_no_log_no_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """All logs of some readers are public ones, which are not part of the project."""
    monkeypatch.setattr(samples, "SAMPLES", tmp_path)
    assert main(["--per-reader", "2", "--readers", "eval_batch", "torchtitan"]) == 0
    assert "eval_batch: no log of it without the folder LLMBENCH_SAMPLES" in capsys.readouterr().err


def test_the_tables_count_what_was_tried() -> None:
    tallies = {"nvlink": Campaign("nvlink", 1).run(range(40))}
    for table in (by_reader(tallies), by_kind(tallies)):
        assert len({row.count("|") for row in table}) == 1
    assert re.search(r"\| nvlink \| 40 \|", by_reader(tallies)[2])
    assert sum(int(row.split("|")[2]) for row in by_kind(tallies)[2:]) == 40
