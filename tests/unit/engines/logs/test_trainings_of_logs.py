"""A framework's log whose steps are no training, or of another run, is not judged."""

import dataclasses
import datetime as dt
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_llmbench.core.record.series import Step, StepSeries
from pytest_llmbench.engines.base import get_engine
from pytest_llmbench.engines.external import External
from pytest_llmbench.judging.findings import findings
from pytest_llmbench.judging.sanity import Origin, first_problem
from pytest_llmbench.readers.items import Parse
from pytest_llmbench.readers.log import read_log
from tests.conftest import known
from tests.support.samples import readable
from tests.unit.judging.sanity.test_sanity_of_commands import evidence, steps

from .test_claims_of_logs import OURS, ours
from .true_logs import LAMBDA_350M, MEGATRON_H200

Change = Callable[[int], str]


def changed(pattern: str, value: Change) -> str:
    """Our log with a field of each of its steps replaced, by the number of the step."""
    heads = re.compile(r"(iteration +)(\d+)(/.*)")

    def line(match: re.Match[str]) -> str:
        rest, count = re.subn(pattern, lambda found: found[1] + value(int(match[2])), match[3])
        assert count == 1
        return match[1] + match[2] + rest

    return heads.sub(line, ours())


def without_loss(text: str, first: int, last: int) -> str:
    """The log whose steps from `first` to `last` have no loss."""
    for step in range(first, last + 1):
        text, count = re.subn(rf"(iteration +{step}/.*?) lm loss: \S+ \|", r"\1", text)
        assert count
    return text


LOSS, SKIPPED = r"(lm loss: )\S+", r"(number of skipped iterations: +)\d+"


@pytest.mark.parametrize(("text", "said"), [
    (changed(LOSS, lambda step: f"{5 * 0.5**step:.6E}"), "the loss fell from 2.5 to"),
    (changed(LOSS, lambda step: f"{1.5 - step / 100:.6E}"), "this is not the beginning of a training"),
    (changed(LOSS, lambda step: f"{15 - step / 100:.6E}"), "this is not the beginning of a training"),
    (changed(SKIPPED, lambda step: str(int(step % 2))), "12 of 25 judged steps were skipped"),
    (without_loss(ours(), 20, 20), "the line of step 20 has no loss"),
], ids=["by heart", "resumed", "diverged", "skipped", "no loss"])  # fmt: skip
def test_steps_that_are_no_training_are_refused(tmp_path: Path, text: str, said: str) -> None:
    """Each class alone, on a log that is whole and says all that the recipe says."""
    problem = known(OURS.problem(tmp_path, text, warm_up={"steps": 5}))
    assert problem.kind == "implausible"
    assert said in problem.message


def test_a_few_skipped_steps_are_a_finding(tmp_path: Path) -> None:
    """Few enough for a verdict, of which it is said what they do to the rate."""

    def told(text: str) -> list[str]:
        evidence = OURS.evidence(tmp_path, text, warm_up={"steps": 5})
        assert first_problem(evidence) is None
        return [each for each in findings(evidence) if "skipped" in each]

    assert told(ours()) == []
    one = without_loss(changed(SKIPPED, lambda step: str(int(step == 20))), 20, 20)
    (finding,) = told(re.sub(r"(iteration +20/.*?\(ms\): )[\d.]+", r"\g<1>100.0", one))
    assert "1 of 25 judged steps were skipped, as their gradients overflowed" in finding
    assert "4 % of it trained nothing" in finding
    warm_up = without_loss(changed(SKIPPED, lambda step: str(int(step == 2))), 2, 2)
    assert told(warm_up) == []


@pytest.mark.parametrize(("slower", "told"), readable(
    [({}, []), ({20: 2.0, 30: 2.0, 40: 1.5}, ["slow steps among the judged ones (1.83 times the median of "]),
     ({50: 3.0, 80: 3.0}, ["slow steps among the judged ones (3 times the median of 0.20", "50, 80: a short warm-up"]),
     ({100: 2.0, 110: 2.0}, ["slow steps among the judged ones (", "100, 110: "]),
     ({10 * step: 1 + step / 100 for step in range(2, 11)} | {110: 1.25}, ["drift by +9.3 %", "is not settled"])],
    lambda _: LAMBDA_350M.name,
))  # fmt: skip
def test_judged_lines_of_several_kinds_are_a_finding(tmp_path: Path, slower: dict[int, float], told: list[str]) -> None:
    """The rule for our own ranks on GPUs holds for a log whose lines are about every tenth step."""

    def slow(line: re.Match[str]) -> str:
        return f"{line[1]}{float(line[3]) / slower.get(int(line[2]), 1.0)}"

    text = re.sub(r"(global_step=(\d+), .*CurrSamplesPerSec=)([\d.]+)", slow, LAMBDA_350M.text())
    evidence = LAMBDA_350M.evidence(tmp_path, text)
    assert first_problem(evidence) is None
    found = [each for each in findings(evidence) if "were skipped" not in each]
    assert len(found) == bool(told)
    assert all(each in found[0] for each in told)


def test_steps_that_are_skipped_before_the_judged_ones_are_none_of_them(tmp_path: Path) -> None:
    text = without_loss(changed(SKIPPED, lambda step: str(int(step <= 5))), 1, 5)
    assert OURS.problem(tmp_path, text, warm_up={"steps": 5}) is None
    assert OURS.problem(tmp_path, text, warm_up={"steps": 2}) is not None


def test_deepspeed_says_how_many_steps_were_skipped(tmp_path: Path) -> None:
    damaged, count = re.subn(r"(step=110, skipped=)9\b", r"\g<1>60", LAMBDA_350M.text())
    assert count == 1
    assert "52 of 100 judged steps were skipped" in known(LAMBDA_350M.problem(tmp_path, damaged)).message


@pytest.mark.parametrize(
    ("factor", "sane"), [(1.0, True), (0.5, False), (2.0, False), (1.33, True), (0.8, False), (1.7, False)]
)
def test_a_rate_of_another_amount_of_work_is_refused(tmp_path: Path, factor: float, *, sane: bool) -> None:
    """Half of the layers or of the sequence is half of the rate in the same time; recomputation adds a third."""
    text = re.sub(
        r"(TFLOP/s/GPU\): )([\d.]+)", lambda found: f"{found[1]}{factor * float(found[2]):.0f}", MEGATRON_H200.text()
    )
    problem = MEGATRON_H200.problem(tmp_path, text)
    assert (problem is None) is sane
    assert problem is None or "FLOPs per token" in problem.message


@pytest.mark.parametrize("name", ["throughput_per_gpu", "tflops", "TFLOPs"])
def test_a_logged_rate_above_the_peak_is_refused(name: str) -> None:
    good = steps(reported={name: 989.0})
    bad = steps(reported={name: 1100.0})
    assert first_problem(dataclasses.replace(evidence(good), peak_tflops=(989.4, 989.4))) is None
    assert first_problem(dataclasses.replace(evidence(bad), peak_tflops=None)) is None
    problem = known(first_problem(dataclasses.replace(evidence(bad), peak_tflops=(989.4, 989.4))))
    assert (problem.kind, "published peak" in problem.message) == ("implausible", True)


def dialect(name: str) -> Parse:
    engine = get_engine(name)
    assert isinstance(engine, External)
    return engine.log_reader().dialect()


LAUNCHED = dt.datetime(2026, 11, 21, 12, 0, tzinfo=dt.UTC).timestamp()
HOUR, DAY = 3600.0, 86400.0


@pytest.mark.parametrize(("first", "last", "sane"), [
    (10, 590, True),
    (-30, 630, True),  # clocks of two machines
    (10 + 5.5 * HOUR, 590 + 5.5 * HOUR, True),  # in India
    (10 - 8 * HOUR, 590 - 8 * HOUR, True),  # in California
    (10 + 14 * HOUR, 590 + 14 * HOUR, True),
    (10 + DAY, 590 + DAY, False),
    (10 - DAY, 590 - DAY, False),
    (10 - 300 * DAY, 590 - 300 * DAY, False),
    (10, 590 + HOUR, False),  # longer than the run
    (10 + 8 * 60, 590 + 8 * 60, False),  # no zone lies there
])  # fmt: skip
def test_a_log_of_another_day_is_refused(first: float, last: float, *, sane: bool) -> None:
    run = evidence(stamped=(LAUNCHED + first, LAUNCHED + last), wall_s=600.0)
    run = dataclasses.replace(run, origin=Origin(launched=LAUNCHED, ended=LAUNCHED + 600))
    problem = first_problem(run)
    assert (problem is None) is sane
    assert problem is None or "it is the log of another run" in problem.message
    assert first_problem(dataclasses.replace(run, origin=Origin())) is None  # made elsewhere, at an unknown time


@pytest.mark.parametrize(("engine", "line"), [
    ("megatron_lm", "[after training is done] datetime: 2026-11-21 12:00:10.747045 "),
    ("metaseq", "2026-11-21 12:00:10 | INFO | metaseq.cli.train | done training in 0.5 seconds"),
    ("nemo_torchrun",
     "[NeMo I 2026-11-21 12:00:10 x:1] All distributed processes registered. Starting with 2 processes"),
    ("deepspeed_chat", "[2026-11-21 12:00:10,626] [INFO] [launch.py:170:main] dist_world_size=2"),
])  # fmt: skip
def test_the_times_of_lines_are_read(tmp_path: Path, engine: str, line: str) -> None:
    path = tmp_path / "job.out"
    path.write_text(f"[default0]:{line}\n")
    assert read_log([path], dialect(engine)).stamped == (LAUNCHED + 10, LAUNCHED + 10)


@pytest.mark.parametrize(
    ("world", "hosts", "kind"),
    readable(
        [
            (None, (), None), (None, ("ml-512-node-001",), None), (None, ("ML-512-node-001.site.example",), None),
            (None, ("ml-512-node-002",), "wrong_nodes"),
            ("'localhost': [0, 1, 2, 3, 4, 5, 6, 7]", ("ml-512-node-001",), None),
            ("'a': [0, 1, 2, 3], 'b': [0, 1, 2, 3]", (), "wrong_nodes"),
            ("'ml-512-node-001': [0, 1, 2, 3]", (), "wrong_ranks"),
        ],
        lambda _: LAMBDA_350M.name,
    ),
)  # fmt: skip
def test_the_hosts_that_deepspeed_names_are_the_leases(
    tmp_path: Path, world: str | None, hosts: tuple[str, ...], kind: str | None
) -> None:
    text = LAMBDA_350M.text()
    if world is not None:
        text, count = re.subn(r"(WORLD INFO DICT: \{).*(\})", rf"\g<1>{world}\g<2>", text)
        assert count == 1
    problem = first_problem(dataclasses.replace(LAMBDA_350M.evidence(tmp_path, text), hosts=hosts))
    assert (problem.kind if problem else None) == kind


def test_a_run_that_was_resumed_in_a_second_file_is_two(tmp_path: Path) -> None:
    """A run that died and one that went on from its steps are two runs; a copy of one log is none."""
    whole = ours().splitlines(keepends=True)
    at = next(index for index, line in enumerate(whole) if re.search(r"iteration +16/", line))
    parse = dialect("megatron_lm")
    paths = [tmp_path / "1.log", tmp_path / "2.log"]
    paths[0].write_text("".join(whole[:at]))
    paths[1].write_text("".join([whole[0], *whole[at:]]))
    assert "in another file than step 15" in (read_log(paths, parse).restarted or "")
    paths[1].write_text("".join(whole[at:]))
    assert read_log(paths, parse).restarted is None  # a log that was split
    paths[1].write_text("".join(whole))
    series = read_log(paths, parse)
    assert (series.restarted, len(series.steps)) == (None, 30)


def test_doubts_bear_any_number() -> None:
    lines = tuple(
        Step(step=at, loss=loss) for at, loss in enumerate((float("inf"), float("-inf"), float("nan"), 0.0), 1)
    )
    recipe = evidence().recipe
    for name in ("megatron_lm", "metaseq", "nemo_torchrun"):
        engine = get_engine(name)
        assert list(engine.doubts(recipe, evidence().topology, StepSeries(steps=lines))) is not None
