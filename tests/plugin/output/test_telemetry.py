"""References on energy and throttling, of a run on two GPUs whose logs are judged as if they had just been made."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import yaml

from pytest_llmbench.core.quantity import for_people
from pytest_llmbench.core.wire.step_events import Event
from pytest_llmbench.reporting.html.page import write_page
from pytest_llmbench.session.folder import read_folder
from tests.conftest import TINY, TORCH, Result, UserFolder
from tests.support.gpu_logs import DEVICE, POWER_W, samples, told, write_rank

STEPS = 30
ORIGIN = {"why": "x", "source": "y", "date": "2026-01-01", "applies_to": {"gpu": "H200"}}
REFERENCES = [
    *TINY["references"],
    {"name": "efficient", "statistic": "tokens_per_joule", "at_least": "0.18 tokens/J", **ORIGIN},
    {"name": "unhindered", "statistic": "throttled", "at_most": "0 %", **ORIGIN},
]
# 25 judged steps of 256 tokens, a second each.
PER_JOULE = 256 / (2 * POWER_W)
# Number of parameters of the recipe's model.
PARAMETERS = 17_888

Judge = Callable[..., Result]


@pytest.fixture
def judge(user: UserFolder) -> Judge:
    """Judge a run by what is known of the GPUs of its two ranks, in this process."""
    user.recipe(**TORCH, steps=STEPS, gpus_per_node=2, warm_up={"steps": 5}, references=REFERENCES)
    folder = user.path / "logs" / "tiny"
    folder.mkdir(parents=True)
    said = {"hosts": ["n0"], "gpus_per_node": 2, "gpu": DEVICE}
    (folder / "replay.yaml").write_text(yaml.safe_dump(said))

    def run(*watched: list[Event]) -> Result:
        for rank, events in enumerate(watched):
            write_rank(folder / "run", rank, STEPS, events, ranks=len(watched), parameters=PARAMETERS)
        return user.run_here(f"--replay={folder.parent}")

    return run


def seen(rank: int, changes: Mapping[float, Mapping[str, Any]] | None = None) -> list[Event]:
    return [told(rank), *samples(STEPS + 1, changes)]


def verdicts(result: Result) -> dict[str, str]:
    return {re.sub(r".*-(.*)\]", r"\1", name): case.properties["verdict"] for name, case in result.cases.items()}


def test_what_the_gpus_did_is_judged_and_kept(judge: Judge) -> None:
    """Every statistic is in the record, with what each GPU did; the terminal has no line more than it had."""
    result = judge(seen(0), seen(1))
    assert verdicts(result) == {"learns": "PASS", "efficient": "PASS", "unhindered": "PASS"}, result.text
    record = result.record()
    metrics = {name: metric["value"] for name, metric in record["metrics"].items()}
    expected = {
        "power_mean": POWER_W, "energy_per_token": 1 / PER_JOULE, "tokens_per_joule": PER_JOULE, "clock_mean": 1455,
        "clock_min": 1455, "throttled": 0, "power_capped": 100, "temperature_max": 58, "memory_used_max": 40,
    }  # fmt: skip
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)
    watched = [(each["rank"], each["gpu"], each["gaps"]) for each in record["telemetry"]]
    assert watched == [(0, "GPU-0", []), (1, "GPU-1", [])]
    assert "its telemetry" not in result.text
    energy = f"{for_people(1 / PER_JOULE)} J/token"
    assert {case.properties["energy"] for case in result.cases.values()} == {energy}
    table = result.text.partition("llmbench verdicts")[2].splitlines()
    assert sum(energy in line for line in table) == 3
    assert f"| {energy} |" in (result.session / "summary.md").read_text()
    page = result.session / "page.html"
    write_page(read_folder(result.session), page)
    assert page.read_text().count(f"<small>energy {energy}</small>") == 3


def test_throttling_is_a_failure(judge: Judge) -> None:
    result = judge(seen(0), seen(1, {20.0: {"clocks_event_reasons": 0x44}}))
    assert verdicts(result) == {"learns": "PASS", "efficient": "PASS", "unhindered": "FAIL"}, result.text
    assert "measured 0.9804 % is above the threshold 0 %" in result.text
    reasons = [each["reasons"] for each in result.record()["telemetry"]]
    assert reasons == [{"power cap": 51}, {"power cap": 51, "hardware thermal slowdown": 1}]
    # A number that is good enough although a GPU was held back says so in the record, the XML and the table, once.
    case = next(case for name, case in result.cases.items() if "efficient" in name)
    told = "throttled in the judged steps: rank 1 on n0 (hardware thermal slowdown in 1 of "
    assert told in case.properties["findings"]
    assert told in result.record()["findings"][0]
    assert result.text.count("finding: throttled") == 1


def test_a_gap_is_said_and_is_no_verdict(judge: Judge) -> None:
    """The GPU may have been throttled in the gap; its energy counter went on."""
    watched = [event for event in seen(1) if getattr(event, "time", 0.0) not in _between(10.0, 17.5)]
    result = judge(seen(0), watched)
    assert verdicts(result) == {"learns": "PASS", "efficient": "PASS", "unhindered": "ERROR"}, result.text
    gap = "rank 1: no sample for 7.5 s of the judged window"
    assert f"llmbench: run tiny is judged without some of its telemetry: {gap}\n" in result.text
    (error,) = [case for name, case in result.cases.items() if "unhindered" in name]
    assert f"telemetry of its GPUs is incomplete: {gap}" in error.message
    record = result.record()
    assert {"throttled", "clock_min"}.isdisjoint(record["metrics"])
    assert record["metrics"]["tokens_per_joule"]["value"] == pytest.approx(PER_JOULE)


def _between(after_s: float, before_s: float) -> set[float]:
    return {event.time for event in samples(STEPS) if after_s < event.time - samples(0)[0].time < before_s}


def test_where_nobody_watched_nothing_is_said(judge: Judge) -> None:
    """Logs from before there were samples: a reference on power is an error, and nothing else is printed."""
    result = judge([], [])
    assert verdicts(result) == {"learns": "PASS", "efficient": "ERROR", "unhindered": "ERROR"}, result.text
    assert "its telemetry" not in result.text
    assert result.record()["telemetry"] == []
    assert "    energy: unknown: its log has no telemetry of the GPUs" in result.text
    assert "| unknown: its log has no telemetry of the GPUs |" in (result.session / "summary.md").read_text()


def test_ranks_of_the_cpu_are_not_watched(user: UserFolder) -> None:
    """A real training on this machine: no samples, no statistics, no noise; references for GPUs are skipped."""
    user.recipe(references=REFERENCES)
    result = user.run("--cluster", "local", "-k", "tiny")
    assert verdicts(result) == {"learns": "PASS", "efficient": "SKIP", "unhindered": "SKIP"}, result.text
    record = result.record()
    assert record["telemetry"] == []
    assert "throttled" not in record["metrics"]
    assert not any("energy" in case.properties for case in result.cases.values())
    assert "its telemetry" not in result.text
    assert "telemetry" not in next((result.session / "runs/tiny/steps").iterdir()).read_text()
