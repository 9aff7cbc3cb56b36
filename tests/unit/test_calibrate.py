"""The command: records of good runs in, a reference out that judges the next run; what is no good run is named."""

import datetime as dt
import json
import random
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_llmbench.cli import app
from pytest_llmbench.cluster.system import load_system
from pytest_llmbench.core.quantity import Quantity
from pytest_llmbench.core.recipe.reference import AppliesTo, Reference
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.plugin.verdict.run import Run
from tests.support.recorded import measured_anew

# A real run on one H200, at 456,479 words/s; its record has no interval.
RECORDED = Path(__file__).parents[1] / "data" / "h200" / "runs" / "opt125m" / "record.json"
REAL: dict[str, Any] = json.loads(RECORDED.read_text("utf-8"))
# Parts of the real run that would contradict other steps than its own.
REAL |= {"telemetry": [], "outside_steps": {}, "rank_info": [info | {"steps": None} for info in REAL["rank_info"]]}
REAL["timings"]["ended"] += 1000
STEPS = 100
BETWEEN = (0.0, 0.0011, -0.0017, 0.0023, -0.0031)
Write = Callable[..., Path]


def main(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as end:
        app.main(["calibrate", *arguments])
    return int(end.value.code or 0)


def measure_again(plain: dict[str, Any]) -> None:
    """Have the numbers of a record follow from its steps."""
    judged = [step for step in plain["steps"] if step["step"] > 5]
    seconds = sum(step["seconds"] for step in judged)
    plain["metrics"] = {
        name: {"value": value, "unit": unit, "rule": "a rule"}
        for name, value, unit in (
            ("throughput", sum(step["tokens"] for step in judged) / seconds, "words/s"),
            ("samples_per_s", sum(step["samples"] for step in judged) / seconds, "samples/s"),
            ("time_for_20m_tokens", 20e6 * seconds / sum(step["tokens"] for step in judged), "s"),
        )
    }


def run_of(session: str, step_s: float = 1.15) -> dict[str, Any]:
    """A record like the real one, of so many steps of that duration, give or take 0.05 %."""
    plain, rng = deepcopy(REAL), random.Random(session)
    plain |= {"session": session, "judgements": []}
    plain["recipe"] |= {"steps": STEPS}
    real = plain["steps"]
    plain["steps"] = [
        real[number % len(real)] | {"step": number, "seconds": step_s * (1 + 0.0005 * rng.gauss(0, 1))}
        for number in range(1, STEPS + 1)
    ]
    measure_again(plain)
    return plain


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write five good runs into a folder of reports, each changed by a function of its number and its record."""

    def write(change: Callable[[int, dict[str, Any]], object] = lambda _n, _plain: None, runs: int = 5) -> Path:
        for number in range(runs):
            plain = run_of(f"2026-{number}", 1.15 * (1 + BETWEEN[number % 5]))
            change(number, plain)
            path = tmp_path / "reports" / f"{number}" / "runs" / "opt125m" / "record.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(plain))
        return tmp_path / "reports"

    return write


def references(text: str) -> list[Reference]:
    """Read what was written as a system's file is read."""
    (found,) = yaml.safe_load(text)["references"].values()
    return [Reference.model_validate(each) for each in found]


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The words with which a calibration is refused; nothing is written then."""
    assert main([str(each) for each in arguments]) == 2
    written, told = capsys.readouterr()
    assert written == ""
    assert all(line.startswith("error: ") for line in told.splitlines())
    return told


def test_good_runs_make_a_reference(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    before = dt.date.today()  # noqa: DTZ011 - as the command has it
    assert main([str(write())]) == 0
    text, told = capsys.readouterr()
    (found,) = references(text)
    assert told == ""
    assert (found.name, found.statistic, found.claim, found.runs) == ("calibrated_throughput_1", "throughput", "run", 5)
    assert found.applies_to == AppliesTo(gpu="H200", gpus=1, nodes=1, system="H200")
    assert before <= found.date <= dt.date.today()  # noqa: DTZ011
    assert found.why.startswith("99 % prediction limit of 5 runs: 456,")
    assert found.source.startswith("calibrated with 5 runs of 2026-11-23: 2026-0/opt125m, 2026-1/opt125m, ")
    assert "torch 2.11.0+cu130" in found.source
    ((op, bound),) = found.bounds
    assert (op, bound.unit) == (">=", "words/s")
    mean = 524288 / 1.15
    assert 0.985 * mean < bound.value < 0.995 * mean
    assert main([str(write()), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["references"]["opt125m"][0]["at_least"].replace(" words/s", "") == f"{bound.value:.6g}"
    assert (told["system"], told["warnings"]) == ("H200", [])


def test_it_judges_the_next_run(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(write()), "--too-fast", "10 %"]) == 0
    path = tmp_path / "mine.yaml"
    path.write_text(f"name: mine\ncluster: local\n{capsys.readouterr().out}")
    (reference,) = load_system(str(path), []).references["opt125m"]
    for share, holds in ((1.0, True), (1.02, False), (0.8, False)):
        plain = run_of("next", 1.15 * share)
        assert (_judged(RunRecord.model_validate(plain)) in reference) is holds, share


def _judged(record: RunRecord) -> Quantity:
    """The throughput of a record, measured by today's rule."""
    from pytest_llmbench.engines.base import get_engine, statistics_of  # noqa: PLC0415
    from pytest_llmbench.judging.good_runs import GoodRun  # noqa: PLC0415

    run = GoodRun(Path("record.json"), record)
    metric = run.metric("throughput", statistics_of(get_engine("torch"))["throughput"])
    changes = {"metrics": {"throughput": metric}, "steady": run.measurement.steady}
    return Run(record.model_copy(update=changes)).throughput


def test_the_recorded_run_counts(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """A record without an interval is judged again from its steps."""
    folder = write()
    plain = json.loads(RECORDED.read_text("utf-8"))
    plain["recipe"]["steps"] = STEPS
    plain["timings"] = {}
    plain["steps"] += [
        {**step, "step": step["step"] + 50, "seconds": 1.0001 * step["seconds"]} for step in plain["steps"]
    ]
    plain = measured_anew(plain)
    (folder / "0" / "runs" / "opt125m" / "record.json").write_text(json.dumps(plain))
    assert main([str(folder)]) == 0
    assert REAL["session"] in capsys.readouterr().out


def test_several_statistics_have_a_reference_each(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--statistic", "time_for_20m_tokens", "--statistic", "samples_per_s", "--name", "mine"]
    assert main([str(write()), *options, "--too-fast", "5%"]) == 0
    slow, rate = references(capsys.readouterr().out)
    assert (slow.name, rate.name) == ("mine_time_for_20m_tokens", "mine_samples_per_s")
    assert slow.at_most is not None
    assert slow.at_least is not None
    assert slow.at_least.value == pytest.approx(0.95 * 20e6 / 524288 * 1.15, rel=2e-3)
    assert slow.at_most.value == pytest.approx(20e6 / 524288 * 1.16, rel=3e-3)
    assert [op for op, _ in rate.bounds] == [">=", "<="]


def test_a_plain_margin(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """Is taken as it is given; a smaller one than runs need is warned of, with the chance of a false alarm."""
    folder = write()
    assert main([str(folder), "--less", "5%", "--name", "mine"]) == 0
    text, told = capsys.readouterr()
    (found,) = references(text)
    assert found.name == "mine"
    assert found.why.startswith("Margin of 5 % on the mean of 5 runs: ")
    assert found.bounds[0][1].value == pytest.approx(0.95 * 524288 / 1.15, rel=1e-3)
    assert told == ""
    assert main([str(folder), "--less", "0.2%"]) == 0
    told = capsys.readouterr().err
    assert "warning: throughput: with a margin of 0.2 % a healthy run misses the bound in 25 % of cases: give" in told
    assert "warning: calibrated_throughput_1: 1 of its own 5 runs would be FAIL: 2026-3/opt125m\n" in told


def test_an_outlier_is_not_counted(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    def slow(number: int, plain: dict[str, Any]) -> None:
        if number == 3:
            plain |= run_of("sick", 1.25)

    assert main([str(write(slow))]) == 0
    text, told = capsys.readouterr()
    assert "warning: throughput: not counted: outliers sick/opt125m. Find out why" in told
    (found,) = references(text)
    assert "Not counted: outliers sick/opt125m." in found.why
    assert "with 4 runs of" in found.source
    assert found.bounds[0][1].value > 0.98 * 524288 / 1.15


def test_a_file_is_written_once(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told, folder = tmp_path / "new.yaml", write()
    assert main([str(folder), "--output", str(told)]) == 0
    assert capsys.readouterr().out == ""
    assert len(references(told.read_text())) == 1
    assert "new.yaml exists already" in refusal(capsys, folder, "--output", told)


def steps(change: Callable[[int], float]) -> Callable[[dict[str, Any]], None]:
    """Change the duration of each step of a record by a factor, and what follows from it."""

    def changed(plain: dict[str, Any]) -> None:
        for step in plain["steps"]:
            step["seconds"] *= change(step["step"])
        measure_again(plain)

    return changed


def shortened(plain: dict[str, Any]) -> None:
    plain["steps"] = plain["steps"][:20]
    plain["recipe"]["steps"] = 20
    measure_again(plain)


CPU = {"device": "cpu", "gpus": 0, "rank_info": []}
OTHER = "NVIDIA H100 80GB HBM3"
PROBLEM = {"kind": "rank_died", "message": "rank 3 died\nat step 9"}
LOSS = {"test": "t[learns]", "verdict": "FAIL", "statistic": "loss_drop", "reason": "measured 0 nat"}

# Damage to the third of five runs, and the message.
UNFIT: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "ended early": (
        lambda p: p.update(early={"planned": 200, "look": 50, "looks": [50], "done": 52, "alpha": 0.0015}),
        "it was ended early, after 52 of 200 steps",
    ),
    "broken": (lambda p: p.update(problem=PROBLEM, metrics={}), "the run is broken (rank_died): rank 3 died"),
    "smoke": (lambda p: p["recipe"].update(scale="smoke"), "scale smoke: a threshold for a machine applies"),
    "no_number": (lambda p: p.update(metrics={}), "it has no throughput; it has no numbers"),
    "unconfirmed": (
        lambda p: (p.update(unconfirmed=["no line describes the model"]), p["rank_info"][0].update(training=None)),
        "its numbers are unconfirmed: no line describes the model",
    ),
    "no_device": (lambda p: p.update(device=None), "its ranks did not report their device"),
    "another_fail": (lambda p: p.update(judgements=[LOSS]), "t[learns] ended in FAIL: measured 0 nat"),
    "too_short": (
        shortened, "15 judged steps with a duration are too few to know how fast it is: train at least 20 steps",
    ),
    "no_durations": (
        lambda p: (p.update(metrics={}), [step.update(seconds=None) for step in p["steps"]]),
        "0 judged steps with a duration are too few to know how fast it is: train at least 20 steps",
    ),
    "not_settled": (steps(lambda n: 1.2 - 0.001 * n), "its steps still became faster at the end: train longer"),
    "changed": (
        lambda p: p["metrics"]["throughput"].update(value=45.6), "throughput is 45.6 words/s, but its steps give 45",
    ),
    "steps_taken_away": (lambda p: p["steps"].__delitem__(slice(50, None)), "but its steps give"),
    "a_step_that_lasts": (lambda p: p["steps"][60].update(seconds=1e9), "but its steps give 0.0498"),
    "not_a_number": (lambda p: p["metrics"]["throughput"].update(value="NaN"), "throughput is nan words/s"),
    "endless": (lambda p: p["steps"][60].update(seconds="Infinity"), "inf s, but the record names no problem"),
    "negative_tokens": (lambda p: p["steps"][60].update(tokens=-1), "step 61 counted -1 tokens in"),
    "no_nodes": (lambda p: p.update(nodes=0), "Input should be greater than 0"),
    "other_batch": (
        lambda p: p["recipe"].update(global_batch_size=128), "the runs differ in recipe.global_batch_size: 256 (",
    ),
    "other_layout": (
        lambda p: p["recipe"]["parallelism"].update(tensor=2),
        "the runs differ in recipe.parallelism: {'sharding': 'none', 'tensor': 1",
    ),
    "other_gpu": (
        lambda p: (p.update(device=OTHER), p["rank_info"][0].update(device=OTHER)),
        "the runs differ in device: NVIDIA H200 (",
    ),
    "other_gpus": (lambda p: p.update(gpus=8, ranks=8, rank_info=p["rank_info"] * 8), "the runs differ in gpus: 1 ("),
    "gpus_that_did_not_train": (
        lambda p: p.update(gpus=8),
        "gpus, ranks, rank_info: 8 × NVIDIA H200, 1 ranks, of which 1 introduced themselves: NVIDIA H200",
    ),
    "ranks_that_did_not_train": (lambda p: p.update(gpus=8, ranks=8), "8 ranks, of which 1 introduced themselves"),
    "ranks_of_another_gpu": (
        lambda p: p["rank_info"][0].update(device="NVIDIA A10"),
        "1 × NVIDIA H200, 1 ranks, of which 1 introduced themselves: NVIDIA A10, NVIDIA H200",
    ),
    "another_number_changed": (
        lambda p: p["metrics"]["samples_per_s"].update(value=3.0),
        "samples_per_s is 3 samples/s, but its steps give 223",
    ),
    "other_nodes": (lambda p: p.update(nodes=2), "the runs differ in nodes: 1 ("),
    "other_system": (lambda p: p.update(system="other"), "the runs differ in system: H200 ("),
    "twice": (lambda p: p.update(run_of("2026-1")), "are the same run, 2026-1/opt125m: give each run once"),
    "copied": (
        lambda p: p.update(run_of("2026-1", 1.15 * (1 + BETWEEN[1])), session="2027"),
        "have the very same step times: one is a copy of the other",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNFIT)
def test_what_is_no_good_run_is_refused(write: Write, capsys: pytest.CaptureFixture[str], name: str) -> None:
    change, words = UNFIT[name]
    folder = write(lambda number, plain: change(plain) if number == 2 else None)
    told = refusal(capsys, folder)
    assert words in told
    assert f"{folder}/2/runs/opt125m/record.json" in told


def test_all_reasons_are_told_at_once(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    told = refusal(capsys, write(lambda _, plain: plain.update(problem=PROBLEM, metrics={})))
    assert told.count("the run is broken") == 5


@pytest.mark.parametrize(("runs", "given"), [(1, "1 run given"), (2, "2 runs given")])
def test_too_few_runs_are_refused(write: Write, capsys: pytest.CaptureFixture[str], runs: int, given: str) -> None:
    assert f"{given}: a threshold needs at least 3, better 5" in refusal(capsys, write(runs=runs))


def test_the_link_to_the_latest_session_adds_no_run(write: Write) -> None:
    """A shell's `reports/*` names that session twice."""
    folder = write(runs=5)
    (folder / "latest").symlink_to("4")
    assert main([*map(str, sorted(folder.glob("*/runs/opt125m/record.json")))]) == 0


def test_one_run_given_three_times_is_one(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs are counted, not files."""
    path = write(runs=1) / "0" / "runs" / "opt125m" / "record.json"
    told = refusal(capsys, path, path, path)
    assert "give each run once" in told
    assert "1 run given: a threshold needs at least 3" in told


def test_three_runs_with_an_outlier_are_too_few(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    told = refusal(capsys, write(lambda n, plain: plain.update(run_of("sick", 1.3)) if n == 2 else None, runs=3))
    assert "without outliers sick/opt125m 2 runs are left, and it takes 3" in told


def test_runs_that_differ_widely_make_no_bound(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    told = refusal(capsys, write(lambda n, plain: plain.update(run_of(f"{n}", 1 + 0.2 * n))))
    assert "throughput: the runs differ by " in told
    assert "finds no slow system" in told


def test_a_machine_without_a_name_has_no_threshold(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """`local` is every machine; a GPU names one, and a processor is named by its system."""
    folder = write(lambda _, plain: plain.update(system="local", **CPU))
    assert "system local is any machine" in refusal(capsys, folder)
    assert main([str(write(lambda _, plain: plain.update(system="local")))]) == 0
    (found,) = references(capsys.readouterr().out)
    assert found.applies_to == AppliesTo(gpu="H200", gpus=1, nodes=1)
    assert main([str(write(lambda _, plain: plain.update(system="desk", **CPU)))]) == 0
    (found,) = references(capsys.readouterr().out)
    assert found.applies_to == AppliesTo(nodes=1, system="desk")


def test_doubts_are_told(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """A missed threshold on speed, a finding and another version do not refuse a run, but the reader must know."""

    def doubtful(number: int, plain: dict[str, Any]) -> None:
        if number == 1:
            missed = {"test": "t[old]", "verdict": "FAIL", "statistic": "throughput"}
            plain |= {"judgements": [missed], "findings": ["GPU 3 was throttled"]}
            plain["versions"] |= {"torch": "2.12.0"}

    assert main([str(write(doubtful))]) == 0
    told = capsys.readouterr().err
    assert "warning: 2026-1/opt125m missed t[old]: see that it ran as it should\n" in told
    assert "warning: 2026-1/opt125m: GPU 3 was throttled\n" in told
    assert "warning: versions of torch differ: 2.11.0+cu130, 2.12.0\n" in told


def test_a_folder_of_several_recipes(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(lambda n, plain: plain["recipe"].update(name="opt350m") if n == 4 else None)
    assert "these are runs of opt125m, opt350m: choose one recipe with --recipe" in refusal(capsys, folder)
    assert "unknown recipe 'opt125'" in refusal(capsys, folder, "--recipe", "opt125")
    assert main([str(folder), "--recipe", "opt125m"]) == 0
    assert "with 4 runs of" in capsys.readouterr().out


def with_mfu(folder: Path) -> Path:
    """Give the records a number that rests on more than their steps."""
    for path in folder.rglob("record.json"):
        plain = json.loads(path.read_text())
        plain["metrics"]["mfu"] = {"value": 40.0, "unit": "%", "rule": "a rule"}
        path.write_text(json.dumps(plain))
    return folder


def test_bad_arguments(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder without runs, a file that is no record, a statistic that is no speed, a bound within the noise."""
    folder = write()
    assert "no run record (runs/*/record.json)" in refusal(capsys, tmp_path / "nothing")
    (tmp_path / "x.json").write_text('{"schema_version": 1}')
    assert "x.json: no run record of schema version 1" in refusal(capsys, tmp_path / "x.json")
    assert "unknown statistic of speed 'loss_drop'" in refusal(capsys, folder, "--statistic", "loss_drop")
    assert "mfu cannot be computed again from its steps" in refusal(capsys, with_mfu(folder), "--statistic", "mfu")
    assert "healthy runs are faster than that in more than 1 %" in refusal(capsys, folder, "--too-fast", "0.5%")
    assert "a margin is above 0 and below 0.5" in refusal(capsys, folder, "--less", "60%")


@pytest.mark.parametrize("share", ["5", "5 words/s", "0 %", "-3%", "100%", "nan %"])
def test_a_margin_is_a_share(capsys: pytest.CaptureFixture[str], share: str) -> None:
    assert main(["record.json", f"--less={share}"]) == 2
    assert "Invalid value for '--less': " in capsys.readouterr().err
