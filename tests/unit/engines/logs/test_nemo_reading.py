"""What the engines of NeMo make of logs and event files: a real run of NeMo 2, and what is wrong with spoiled ones."""

import shutil
import statistics as stats
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.recipe.environments import Environment
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.series import Step
from pytest_llmbench.core.schema import validate
from pytest_llmbench.engines.base import Place
from pytest_llmbench.engines.nemo import torchrun as nemo_torchrun
from pytest_llmbench.engines.nemo.base import hydra_words
from pytest_llmbench.judging.findings import findings
from pytest_llmbench.judging.sanity import Evidence, Origin, first_problem
from pytest_llmbench.judging.statistics import Measurement, judged_steps, measure
from tests.conftest import known

DATA = Path(__file__).parents[3] / "data" / "nemo"
ENGINE = nemo_torchrun.ENGINE
TOPOLOGY = Topology(nodes=1, gpus_per_node=0, cpu_ranks_per_node=2)
RECIPE = validate(
    Recipe,
    {
        "name": "nemo", "engine": "nemo_torchrun", "gpus_per_node": 0,
        "model": {"layers": 2, "hidden_size": 64, "attention_heads": 4, "vocab_size": 128},
        "parallelism": {"tensor": 2}, "sequence_length": 32, "global_batch_size": 8, "micro_batch_size": 2,
        "precision": "fp32", "optimizer": {"learning_rate": 5.0e-3}, "steps": 40, "warm_up": {"steps": 5},
        "time_limit": "00:10:00",
    },
    "here",
)  # fmt: skip
EVENTS = next(DATA.glob("events.out.tfevents.*"))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A copy of the run, in folders as a run of ours has them."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "results" / "tensorboard").mkdir(parents=True)
    shutil.copy(DATA / "output.log", tmp_path / "logs")
    shutil.copy(EVENTS, tmp_path / "results" / "tensorboard")
    return tmp_path


def problem(folder: Path, recipe: Recipe = RECIPE) -> tuple[str, str] | None:
    series = ENGINE.read(folder, recipe)
    evidence = Evidence(
        recipe=recipe, topology=TOPOLOGY, series=series, hosts=("here",), wall_s=None, gpu=None, kind="command",
        proof=ENGINE.proof, doubts=tuple(ENGINE.doubts(recipe, TOPOLOGY, series)),
    )  # fmt: skip
    found = first_problem(evidence)
    return (found.kind, found.message) if found else None


def metrics(steps: tuple[Step, ...], totals: dict[str, float] | None = None) -> dict[str, float]:
    measurement = Measurement(
        recipe=RECIPE, steps=steps, judged=judged_steps(RECIPE, steps), gpus=0, totals=totals or {},
        matmul_flops_per_s=None, peak_flops_per_s=None,
    )  # fmt: skip
    return {name: metric.value for name, metric in measure(measurement, ENGINE.statistics).items()}


def test_a_real_run(run: Path) -> None:
    series = ENGINE.read(run, RECIPE)
    assert problem(run) is None
    assert known(problem(run, RECIPE.model_copy(update={"global_batch_size": 16})))[0] == "wrong_work"
    assert [step.step for step in series.steps] == list(range(1, 41))
    assert (series.completed, series.world_size) == ("`Trainer.fit` stopped: `max_steps=40` reached.", 2)
    assert all(step.samples == 8 and step.tokens == 256 for step in series.steps)
    # The log has 4 digits of it.
    assert series.steps[-1].seconds == 0.10540299117565155
    found = metrics(series.steps, dict(series.totals))
    assert found["step_time_after_5"] == pytest.approx(0.16908189292464937, rel=1e-12)
    assert found["samples_per_s_after_5"] == pytest.approx(8 / 0.16908189292464937)
    assert found["tokens_per_s_after_5"] == pytest.approx(256 / 0.16908189292464937)
    assert found["step_time_last"] == 0.10540299117565155
    assert not {"step_time_149_169_189", "elapsed"} & found.keys()
    assert series.totals["end_training"] > series.totals["begin_training"]


def test_without_an_event_file_the_log_has_the_steps(run: Path) -> None:
    exact = ENGINE.read(run, RECIPE).steps
    shutil.rmtree(run / "results")
    steps = ENGINE.read(run, RECIPE).steps
    assert [step.step for step in steps] == [step.step for step in exact]
    assert [step.seconds for step in steps] == pytest.approx([step.seconds for step in exact], rel=1e-3)
    assert [step.loss for step in steps] == pytest.approx([step.loss for step in exact], rel=1e-3)
    assert problem(run) is None


def test_an_event_file_alone_proves_no_completion(run: Path) -> None:
    """All steps are there, and nothing says that the run came to its end."""
    (run / "logs" / "output.log").unlink()
    kind, message = problem(run) or ("", "")
    assert kind == "no_evidence_of_completion"
    assert "after step 40" in message
    assert metrics(ENGINE.read(run, RECIPE).steps)["step_time_after_5"] > 0.0


def cut_the_end(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-25])


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))


SPOILT: dict[str, tuple[str, Callable[[bytes], bytes], str, str]] = {
    "half an event file": (
        "events.out.*", lambda data: data[: len(data) // 2], "unreadable_log", "1 line that looks like a step could not"
    ),
    "the end of a longer run": (
        "output.log", lambda data: data.replace(b"max_steps=40", b"max_steps=50"), "implausible", "max_steps=50"
    ),
    "two runs": (
        "output.log", lambda data: data + data.replace(b"train_loss: 5", b"train_loss: 6"), "restarted", "output.log:"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_file_is_not_judged(run: Path, name: str) -> None:
    """Although the log says that the run was completed."""
    file, spoil, kind, words = SPOILT[name]
    path = next(run.rglob(file))
    path.write_bytes(spoil(path.read_bytes()))
    found = known(problem(run))
    assert (found[0], words in found[1]) == (kind, True)


@pytest.mark.parametrize("spoil", [cut_the_end, damage])
def test_a_record_that_cannot_be_read_is_counted(run: Path, spoil: Callable[[Path], None]) -> None:
    spoil(next(run.rglob("events.out.tfevents.*")))
    series = ENGINE.read(run, RECIPE)
    assert series.unread == 1
    assert "events.out.tfevents" in series.unreadable[0]


def test_progress_is_that_of_the_log_that_got_furthest(run: Path) -> None:
    """Ranks print to files of the launcher's, while the driver's own log says little."""
    (run / "results" / "gpt").mkdir()
    shutil.move(run / "logs" / "output.log", run / "results" / "gpt" / "gpt-1.log")
    (run / "logs" / "output.log").write_text("Submitted Training script with job id: 123456\n")
    progress = known(ENGINE.progress(run))
    assert (progress.step, progress.seconds) == (40, 0.1054)
    assert ENGINE.progress(run / "logs") is None


def logged(timings: list[float | None]) -> tuple[Step, ...]:
    return tuple(Step(step=number, seconds=seconds, loss=1.0) for number, seconds in enumerate(timings, start=1))


def test_azure_s_three_steps_are_counted_from_0() -> None:
    timings: list[float | None] = [1000.0 + step for step in range(200)]
    assert metrics(logged(timings))["step_time_149_169_189"] == 1000.0 + (149 + 169 + 189) / 3
    for step in (149, 169, 189):
        assert "step_time_149_169_189" not in metrics(logged([*timings[:step], None, *timings[step + 1 :]]))
    assert "step_time_149_169_189" not in metrics(logged(timings[:189]))
    assert "step_time_149_169_189" in metrics(logged(timings[:190]))


@given(st.lists(st.floats(0.001, 1000.0), min_size=1, max_size=30))
def test_nvidia_s_rule_needs_more_than_6_values(timings: list[float]) -> None:
    found = metrics(logged(list(timings)))
    if len(timings) <= 6:
        assert "step_time_after_5" not in found
    else:
        assert found["step_time_after_5"] == pytest.approx(stats.fmean(timings[5:]))
    assert found["step_time_last"] == timings[-1]


def test_samples_are_what_was_consumed_between_two_steps(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    series = ENGINE.read(run, RECIPE)
    bare = tuple(
        step.model_copy(update={"samples": None, "tokens": None, "reported": {"consumed_samples": 8.0 * step.step}})
        for step in series.steps
    )
    monkeypatch.setattr("pytest_llmbench.engines.nemo.log.series", lambda _: series.model_copy(update={"steps": bare}))
    steps = ENGINE.read(run, RECIPE).steps
    assert [step.samples for step in steps] == [None, *[8] * 39]
    assert [step.tokens for step in steps] == [None, *[256] * 39]


def test_the_rate_is_that_of_the_batch_that_was_logged(run: Path) -> None:
    steps = ENGINE.read(run, RECIPE).steps
    seconds = metrics(steps)["step_time_after_5"]
    other = tuple(step.model_copy(update={"samples": 4}) for step in steps)
    none = tuple(step.model_copy(update={"samples": None}) for step in steps)
    assert [metrics(each)["samples_per_s_after_5"] for each in (other, none)] == [4 / seconds, 8 / seconds]
    assert metrics(other)["tokens_per_s_after_5"] == 4 / seconds * 32


def test_gnu_time_becomes_a_total(run: Path) -> None:
    with (run / "logs" / "output.log").open("a") as log:
        log.write("605.89user 3384.71system 19:09.46elapsed 347%CPU (0avgtext+0avgdata 69656maxresident)k\n")
    series = ENGINE.read(run, RECIPE)
    assert metrics(series.steps, dict(series.totals))["elapsed"] == pytest.approx(19 * 60 + 9.46)


def test_overrides_are_in_hydra_s_notation() -> None:
    """What has signs of Hydra's own is quoted, and null takes an override away."""
    place = Place(folder=Path("/run"), environment=Environment(data="/data"), slurm=True, time_limit_min=1)
    found = hydra_words(
        {"a": True, "b": 1.5, "c": None, "d": "{data}/x:y", "e": ("/a:/b", 0.5, "{run}"), "f": "a,b", "g": "^openib"},
        place,
        "here",
    )
    assert found == ["a=True", "b=1.5", "d=/data/x:y", 'e=["/a:/b",0.5,"/run"]', 'f="a,b"', 'g="^openib"']


DAY_S = 86400.0


@pytest.mark.parametrize(("later_s", "sane"), [(0.0, True), (200.0, True), (DAY_S, False), (-DAY_S, False)])
def test_event_files_are_of_the_runs_time(run: Path, later_s: float, *, sane: bool) -> None:
    """The steps are read from them: those of another run, left in the folder, are not taken for this one's."""
    series = ENGINE.read(run, RECIPE)
    first, last = series.written or (0.0, 0.0)
    assert 1795252130 < first < last < 1795252138
    alone = series.model_copy(update={"stamped": None})
    origin = Origin(launched=first - 30 + later_s, ended=last + 5 + later_s)
    found = first_problem(
        Evidence(
            recipe=RECIPE, topology=TOPOLOGY, series=alone, hosts=("here",), wall_s=None, gpu=None, kind="command",
            origin=origin,
        )
    )  # fmt: skip
    assert (found is None) == sane
    assert sane or (found is not None and "they are of another run" in found.message)


@pytest.mark.parametrize(("share", "doubted"), [(1.0, False), (0.7, False), (0.4, True)])
def test_the_times_of_event_files_bound_what_is_said_of_steps(run: Path, share: float, *, doubted: bool) -> None:
    """Steps that say half of the time that passes from one to the next were not what took it; less is a finding."""
    gpus = Topology(nodes=1, gpus_per_node=2)
    series = ENGINE.read(run, RECIPE)
    steps = tuple(s.model_copy(update={"seconds": share * known(s.seconds), "at": 0.17 * s.step}) for s in series.steps)
    series = series.model_copy(update={"steps": steps})
    told = [each for each in ENGINE.doubts(RECIPE, gpus, series) if "by the times of its lines or event files" in each]
    assert bool(told) == doubted
    evidence = Evidence(
        recipe=RECIPE, topology=gpus, series=series, hosts=("here",), wall_s=None, gpu=None, kind="command"
    )
    assert any("% longer than it reports" in each for each in findings(evidence)) == (share < 1)


def with_line(folder: Path, step: int, old: str, new: str) -> None:
    """Change the line of a step in the log, counted from 0."""
    log = folder / "logs" / "output.log"
    lines = log.read_text().splitlines(keepends=True)
    (place,) = [index for index, line in enumerate(lines) if f"| global_step: {step} |" in line]
    assert old in lines[place]
    lines[place] = lines[place].replace(old, new)
    log.write_text("".join(lines))


@pytest.mark.parametrize(("old", "new", "why"), [
    ("train_step_timing in s: 0.1085", "train_step_timing in s: 0.0985",
     "the time in seconds of step 39 is 0.0985"),
    ("reduced_train_loss: 4.072", "reduced_train_loss: 3.072", "the loss of step 39 is 3.072 in its log and 4.07"),
    ("global_batch_size: 8", "global_batch_size: 9",
     "the batch of step 39 is 9 in its log and 8 in its event file"),
])  # fmt: skip
def test_a_log_that_its_event_file_contradicts_is_a_doubt(run: Path, old: str, new: str, why: str) -> None:
    assert problem(run) is None
    with_line(run, 38, old, new)
    found = known(problem(run))
    assert (found[0], found[1][: len(why)]) == ("implausible", why)


@pytest.mark.parametrize(("elapsed", "doubted"), [("1:01.52", False), ("2:01.52", True), ("0:01.52", False)])
def test_the_time_of_a_command_fits_between_its_dates(run: Path, elapsed: str, doubted: bool) -> None:
    log = run / "logs" / "output.log"
    spent = f"96.41user 13.30system {elapsed}elapsed 178%CPU (0avgtext+0avgdata 927828maxresident)k\n"
    log.write_text(log.read_text().replace("END_TRAINING", f"{spent}END_TRAINING"))
    assert (problem(run) is not None) == doubted
    log.write_text(log.read_text().replace("09:09:05 UTC", "10:09:05 UTC"))
    assert known(problem(run))[1].endswith("the dates around it are 3663 s apart")
