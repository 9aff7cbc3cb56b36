"""A record that contradicts itself is refused by everyone who would build on it, with file, key and both values."""

import json
import re
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.calibrate import calibrate_references, read_runs
from pytest_llmbench.cli.history import compare
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.engines.base import get_engine, statistics_of
from pytest_llmbench.history.database import open_history
from pytest_llmbench.history.importing import import_sessions
from pytest_llmbench.judging.contradictions import contradictions
from tests.support.recorded import REAL, agreed, run_record

DATA = Path(__file__).parents[2] / "data"


@pytest.fixture(scope="module")
def sound() -> dict[str, Any]:
    """A record of a real run with the interval and verdicts of today's version."""
    plain: dict[str, Any] = json.loads(REAL.read_text())
    made = run_record(Path("20261101-120000-aaaaaa"), "opt125m", 1)
    again = json.loads(made.model_dump_json())
    plain |= {name: again[name] for name in ("steps", "steady", "schema_version", "timings", "session", "key")}
    for step in plain["steps"]:
        step["ranks"] = 1
    plain["metrics"] = {"throughput": again["metrics"]["throughput"]}
    told = plain["metrics"]["throughput"]
    plain["recipe"]["references"] = [
        {
            "name": "h200", "statistic": "throughput", "at_least": "400000 words/s", "why": "measured",
            "source": "ours", "date": "2026-11-01", "applies_to": {"system": "H200"},
        }
    ]  # fmt: skip
    plain["judgements"] = [
        {
            "test": "test_training.py::test_reference[opt125m-h200]", "verdict": "PASS", "statistic": "throughput",
            "measured": f"{told['value']!r} words/s", "value": told["value"], "unit": "words/s", "low": told["low"],
            "high": told["high"], "threshold": ">= 400000 words/s", "at_least": 400000.0, "at_most": None,
            "reference": "h200",
        }
    ]  # fmt: skip
    record = agreed(RunRecord.model_validate(plain))
    plain = json.loads(record.model_dump_json())
    plain["judgements"][0]["threshold"] = record.recipe.references[0].threshold
    return plain


def found_in(plain: dict[str, Any]) -> list[str]:
    record = RunRecord.model_validate(plain)
    return [*contradictions(record, statistics_of(get_engine(record.recipe.engine)))]


def halve(p: dict[str, Any], name: str) -> None:
    p["telemetry"][0][name] /= 2


def judged(**values: Any) -> Callable[[dict[str, Any]], object]:
    return lambda p: p["judgements"][0].update(values)


def a_number(name: str, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda p: p["metrics"]["throughput"].update({name: value})


def a_step(key: str, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda p: p["steps"][6].update({key: value})


# Damage to a sound record; the key that is named, and both values.
DAMAGES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "number raised": (a_number("value", 5e5), r"metrics\.throughput\.value: .* 500,000 .* but its steps give 4\d\d,"),
    "number 0": (a_number("value", 0.0), r"metrics\.throughput\.value: throughput is 0\.0 words/s"),
    "number NaN": (a_number("value", "NaN"), r"metrics\.throughput\.value: throughput is nan"),
    "another unit": (a_number("unit", "samples/s"), r"metrics\.throughput\.unit: 'samples/s', but .* 'words/s'"),
    "low raised": (a_number("low", 450000.0), r"metrics\.throughput\.low: 450000\.0, but its steps give"),
    "interval gone": (a_number("high", None), r"metrics\.throughput\.high: None, but its steps give \d"),
    "interval turned": (a_number("low", 1e9), r"metrics\.throughput\.low: 1000000000\.0, but .*high is \d"),
    "amount changed": (a_number("amount", 1.0), r"metrics\.throughput\.amount: 1\.0, but its steps give"),
    "a faster step": (a_step("seconds", 1e-3), r"metrics\.throughput\.value: .*but its steps give"),
    "a step of no time": (a_step("seconds", 0.0), "steps: step 7 took 0 s, but the record names no problem"),
    "other tokens": (a_step("tokens", 7), r"steps: step 7 counted 7 tokens in 256 sequences; the recipe says \d+"),
    "steps swapped": (lambda p: p["steps"].reverse(), r"steps: step \d+ comes after step \d+"),
    "a step twice": (lambda p: p["steps"].insert(3, p["steps"][3]), "steps: step 4 comes after step 4"),
    "a step missing at the end": (lambda p: p["steps"].pop(), r"steps: the last one is \d+, but recipe\.steps is"),
    "a constant loss": (lambda p: [s.update(loss=2.5) for s in p["steps"]], "steps: its loss is 2.5 in all"),
    "a loss that rises": (lambda p: [s.update(loss=s["loss"] + s["step"]) for s in p["steps"]],
                          "steps: the loss rose from"),
    "copied steps": (lambda p: [s.update(seconds=q["seconds"], loss=q["loss"])
                                for s, q in zip(p["steps"][10:], p["steps"][:10], strict=False)],
                     "steps: the lines of steps 11 to"),
    "a loss that is none": (a_step("loss", "NaN"), "steps: loss is nan at step 7"),
    "a rank twice": (lambda p: p["rank_info"].append(p["rank_info"][0]), "rank_info: rank 0 is in it 2 times"),
    "more GPUs": (lambda p: p.update(gpus=8), "gpus, ranks, rank_info: 8 × NVIDIA H200, 1 ranks"),
    "half the time": (lambda p: [s.update(seconds=s["seconds"] / 2) for s in p["steps"]],
                      "rank_info: the steps of the"),
    "a longer launch": (lambda p: p["timings"].update(ended=p["timings"]["submitted"] + 9),
                        "steps: .* but the run took 9 s"),
    "time in steps": (lambda p: p["outside_steps"].update(steps_s=9.0), r"outside_steps\.steps_s: 9\.0, but"),
    "time of a rank": (lambda p: p["rank_info"][0]["steps"].update(ended=p["rank_info"][0]["steps"]["began"] + 9),
                       r"rank_info\[0\]\.steps\.seconds: .* by its time stamps it took 9"),
    "half the energy": (lambda p: halve(p, "energy_j"), r"telemetry\[0\]\.power_w: .*its energy gives"),
    "half the power": (lambda p: halve(p, "power_w"), r"telemetry\[0\]\.power_w: .*its energy gives"),
    "half the window": (lambda p: halve(p, "seconds"), r"telemetry\[0\]\.seconds: .*the judged steps add up to"),
    "samples": (lambda p: p["telemetry"][0].update(samples=900), r"telemetry\[0\]\.samples: 900, but in"),
    "ended before it began": (lambda p: p["timings"].update(ended=1.0),
                              r"timings\.ended: 1\.0, but timings\.submitted"),
    "PASS without its number": (lambda p: p.update(metrics={}), r"verdict: PASS, but metrics has no throughput"),
    "PASS without a value": (judged(value=None, measured=None), r"\.value: none, but its verdict is PASS"),
    "PASS without an interval": (judged(low=None, high=None), r"\.low, high: none, but its verdict is PASS"),
    "PASS below its bound": (judged(value=3e5, low=3e5, high=3e5, measured=None), "PASS, but 300000 words/s misses"),
    "FAIL above its bound": (judged(verdict="FAIL"), r"verdict: FAIL, but 4.* meets"),
    "another value": (judged(value=1.0), r"\.value: 1\.0, but .*\.measured is 4"),
    "a lower bound": (judged(threshold=">= 1 words/s"), r"\.threshold: >= 1 words/s, but recipe\.references has"),
    "a bound of its own": (judged(reference="easy"), r"\.reference: easy, but recipe\.references has no such"),
    "PASS of a broken run": (lambda p: p.update(problem={"kind": "rank_died", "message": "rank 3 died"}, metrics={}),
                             "verdict: PASS, but the run has the problem rank_died"),
    "numbers of a broken run": (lambda p: p.update(problem={"kind": "rank_died", "message": "rank 3 died"},
                                                   judgements=[]), "problem: rank_died, but metrics has throughput"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_contradiction_is_told_with_key_and_both_values(sound: dict[str, Any], damage: str) -> None:
    change, words = DAMAGES[damage]
    plain = deepcopy(sound)
    change(plain)
    assert re.search(words, "\n".join(found_in(plain)))


def test_sound_records_have_none(sound: dict[str, Any]) -> None:
    assert found_in(sound) == []
    real = [path for path in sorted(DATA.glob("**/runs/*/record.json")) if "unigram" not in path.read_text()]
    assert len(real) >= 4
    for path in real:
        assert found_in(json.loads(path.read_text())) == [], path
        # As it is written again, with the keys that it lacked.
        assert found_in(json.loads(RunRecord.read(path).model_dump_json())) == [], path
    busy = deepcopy(sound)
    busy["telemetry"][0]["seconds"] = 1.04 * busy["telemetry"][0]["seconds"] + 0.015
    assert found_in(busy) == [], "a rank wrote the stamps at the ends of its window later, as busy cores have it"


# One damage of each kind: these callers treat all contradictions alike.
@pytest.mark.parametrize("damage", ["number raised", "a rank twice", "PASS below its bound", "PASS of a broken run"])
def test_calibrate_import_and_compare_refuse_it(sound: dict[str, Any], damage: str, tmp_path: Path) -> None:
    change, words = DAMAGES[damage]
    plain = deepcopy(sound)
    change(plain)
    for name, record in (("sound", sound), ("damaged", plain)):
        path = tmp_path / name / "runs" / "opt125m" / "record.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({**record, "session": f"20261101-120000-{name}"}))
    history = open_history(tmp_path / "h.db")
    assert import_sessions(history, [tmp_path / "sound"]).refused == []
    (why,) = import_sessions(history, [tmp_path / "damaged"]).refused
    assert why.startswith(f"{path}: the record contradicts itself: ")
    with pytest.raises(ConfigError, match=re.escape(f"{path}: the record contradicts itself: ")):
        compare(str(tmp_path / "sound"), str(tmp_path / "damaged"), history=str(tmp_path / "none.db"))
    with pytest.raises(ConfigError) as refused:
        calibrate_references(read_runs([tmp_path / "damaged"], None), (), None, None, None)
    told = str(refused.value)
    assert str(path) in told
    assert re.search(words, told) or "the run is broken (rank_died)" in told
