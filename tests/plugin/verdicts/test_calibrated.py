"""A threshold that `calibrate` wrote, in a system's file, judges the runs that come after."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.cli import app
from tests.conftest import Result, UserFolder
from tests.plugin.conftest import ONE_H200, RECORDED
from tests.support.recorded import measured_anew


def siblings(plain: dict[str, Any], folder: Path, faster: float) -> Path:
    """Records of five runs like that one, so many times as fast, that differ by about 0.2 %."""
    rng = random.Random(1)
    for number in range(5):
        factor = (1 + 0.002 * rng.gauss(0, 1)) / faster
        steps = [
            step | {"seconds": step["seconds"] * factor * (1 + 0.0005 * rng.gauss(0, 1))} for step in plain["steps"]
        ]
        judged = [step for step in steps if step["step"] > plain["recipe"]["warm_up"]["steps"]]
        rate = sum(step["tokens"] for step in judged) / sum(step["seconds"] for step in judged)
        metrics = {"throughput": {"value": rate, "unit": "words/s", "rule": "a rule"}}
        changed = {"session": f"s{number}", "steps": steps, "metrics": metrics, "judgements": []}
        record = measured_anew(plain | changed)
        times = record["timings"]
        times["ended"] = max(times["ended"], times["started"] + sum(step["seconds"] for step in steps) + 1)
        (folder / f"{number}.json").write_text(json.dumps(record))
    return folder


def calibrated(folder: Path, system: Path, text: str) -> None:
    """Write a system's file with a threshold from the records in a folder."""
    written = folder / "calibrated.yaml"
    words = ["calibrate", *map(str, folder.glob("*.json")), "--output", str(written), "--name", "calibrated"]
    with pytest.raises(SystemExit) as end:
        app.main(words)
    assert end.value.code == 0
    system.write_text(text + written.read_text())


def judge(user: UserFolder, *options: str) -> Result:
    return user.run("-k", "calibrated", *options)


@pytest.mark.parametrize(("faster", "verdict", "distribution"), [
    (1.0, "PASS", "-n0"), (1.03, "FAIL", "-n0"), (1.01, "INCONCLUSIVE", "-n0"), (1.01, "INCONCLUSIVE", "-n2"),
])  # fmt: skip
def test_a_real_run_is_judged_by_runs_like_it(
    recorded: UserFolder, tmp_path: Path, faster: float, verdict: str, distribution: str
) -> None:
    plain = json.loads((RECORDED / "runs" / "opt125m" / "record.json").read_text("utf-8"))
    calibrated(siblings(plain, tmp_path, faster), recorded.path / "one_h200.yaml", ONE_H200)
    result = judge(recorded, "--replay", "as-recorded:recorded", "--system", "one_h200.yaml", distribution)
    assert result.case.properties["verdict"] == verdict, result.text
    assert result.case.properties["claim"] == "run"
    assert result.case.properties["speed_judged"] == "throughput"
