"""What a framework's log says of its speed in several ways has to be one speed, of the recipe's work."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import known
from tests.support.samples import readable

from .test_claims_of_logs import OURS, ours
from .true_logs import LAMBDA_13B, LAMBDA_350M, METASEQ_CPU, TrueLog

STEPS, EVERY, SECONDS = 50, 5, 2.5
TOKENS = 8 * 64
METASEQ = TrueLog(
    name="", engine="metaseq", ranks=2, recipe={**METASEQ_CPU.recipe, "steps": STEPS, "precision": "fp32"}
)


def metaseq(rate: float = 1.0, wall: float = 1.0, stamps: float = 1.0, busy: float = 1.0, pause_s: float = 0.0) -> str:
    """A log of ten lines, a line each five steps; each of its clocks may be at another speed than the truth.

    Args:
        rate: of `wps` and `ups`.
        wall: of `wall`.
        stamps: of the lines' times.
        busy: of `train_wall`.
        pause_s: for which no step was made before each line but the first.
    """
    lines = ["2026-11-21 10:00:00 | INFO | metaseq.cli.train | training on 2 devices (GPUs/TPUs)"]
    for number in range(EVERY, STEPS + 1, EVERY):
        took = number * SECONDS + pause_s * (number // EVERY - 1)
        at = 36000 + int(20 + stamps * took)
        said: dict[str, Any] = {
            "epoch": 1, "loss": 13.0 - number / 10, "wps": f"{rate * TOKENS / SECONDS:.1f}",
            "ups": f"{rate / SECONDS:.2f}", "wpb": TOKENS, "bsz": 8, "num_updates": number, "gnorm": 1.0,
            "train_wall": f"{busy * EVERY * SECONDS:.0f}", "wall": f"{15 + wall * took:.0f}",
        }  # fmt: skip
        told = json.dumps({name: str(value) for name, value in said.items()})
        time = f"{at // 3600:02d}:{at // 60 % 60:02d}:{at % 60:02d}"
        lines.append(f"2026-11-21 {time} | INFO | train_inner | {told}")
    lines.append("2026-11-21 12:00:00 | INFO | metaseq.cli.train | done training in 140.5 seconds")
    return "".join(f"{line}\n" for line in lines)


@pytest.mark.parametrize("text", [
    metaseq(),
    metaseq(pause_s=7.0),  # an evaluation, a checkpoint, or norms that are logged
    metaseq(busy=0.6),
    metaseq(busy=1.2),
    metaseq(stamps=1.01),
])  # fmt: skip
def test_clocks_that_agree_are_no_doubt(tmp_path: Path, text: str) -> None:
    assert METASEQ.problem(tmp_path, text) is None


@pytest.mark.parametrize(("text", "said"), [
    (metaseq(rate=2.0), "was busy for 12 s by `train_wall`, where its rate is of 6.25 s"),
    (metaseq(rate=0.5), "5 steps took 25 s by the line about them, and 12 s by `wall`"),
    (metaseq(stamps=0.5), "`wall` goes on by 12 s, and the time by 6 s"),
    (metaseq(wall=2.0), "`wall` goes on by 25 s, and the time by 13 s"),
    (metaseq(rate=2.0, wall=0.5, busy=0.5), "`wall` goes on by 7 s, and the time by 13 s"),
    (re.sub(r'"ups": "0.4\d*"', '"ups": "0.80"', metaseq()), "step 5 has wps 204.8, where ups 0.8 × wpb 512 are"),
    (re.sub(r'"ups": "0.4\d*"', '"ups": "0.80"', metaseq()).replace('"wpb": "512", ', ""),
     "step 5 has wps 204.8, where ups 0.8 × the recipe's 512 are"),
], ids=["rate", "slower", "stamps", "wall", "all but the stamps", "ups", "ups alone"])  # fmt: skip
def test_metaseqs_clocks_have_to_agree(tmp_path: Path, text: str, said: str) -> None:
    """`wps`, `wall`, `train_wall` and the times of its lines, each by another clock."""
    problem = known(METASEQ.problem(tmp_path, text))
    assert (problem.kind, said in problem.message) == ("implausible", True), problem.message


@pytest.mark.parametrize(
    ("log", "sequences"), readable([(LAMBDA_350M, 19200), (LAMBDA_13B, 12800)], lambda case: case[0].name)
)
@pytest.mark.parametrize("share", [0.5, 0.95])
def test_lambdas_execution_time_covers_its_lines(tmp_path: Path, log: TrueLog, sequences: int, share: float) -> None:
    """A shorter time and a higher throughput, whose product is still all samples, are not those of these lines."""
    text = log.text()
    (seconds,) = re.findall(r"Execution time: ([\d.]+) seconds", text)
    shorter = share * float(seconds)
    text = text.replace(f"Execution time: {seconds} ", f"Execution time: {shorter:.4f} ")
    text = re.sub(r"Throughput: [\d.]+", f"Throughput: {sequences / shorter:.4f}", text)
    assert "s passed by the lines' times, and" in known(log.problem(tmp_path, text)).message


@pytest.mark.parametrize(("share", "sane"), [(1.0, True), (0.2, False)])
def test_megatrons_time_stamps_are_those_of_its_steps(tmp_path: Path, share: float, *, sane: bool) -> None:
    """Also where all steps take less than a stamp may be late."""
    scaled = re.sub(r"(per iteration \(ms\): )([\d.]+)", lambda m: f"{m[1]}{share * float(m[2]):.1f}", ours())
    problem = OURS.problem(tmp_path, scaled)
    assert (problem is None) is sane
    assert problem is None or "times their logged duration" in problem.message


@pytest.mark.parametrize(("per_s", "sane"), [(1.0, True), (1.2, False), (0.5, False)])
@pytest.mark.parametrize(("name", "work"), [("samples per second", 8.0), ("tokens per GPU per second", 8 * 32 / 2)])
def test_megatrons_rates_are_of_its_work(tmp_path: Path, name: str, work: float, per_s: float, *, sane: bool) -> None:
    def with_rate(line: re.Match[str]) -> str:
        return f"{line[0]} {name}: {per_s * work / (float(line[1]) / 1000):.3f} |"

    text = re.sub(r"elapsed time per iteration \(ms\): ([\d.]+) \|", with_rate, ours())
    problem = OURS.problem(tmp_path, text)
    assert (problem is None) == sane
    assert sane or (problem is not None and "the recipe's" in problem.message)
