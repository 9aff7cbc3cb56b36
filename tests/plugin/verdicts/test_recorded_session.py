"""A session recorded before the modules moved: CI jobs, scripts and dashboards that were written for it still work."""

import json
import re
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.plugin.options import OPTIONS
from tests.conftest import TEST_REFERENCES, Result, UserFolder
from tests.docs.test_reference_is_complete import tables
from tests.docs.test_validation_is_complete import table

RECORDED = Path(__file__).parents[2] / "data" / "session"
(SESSION,) = RECORDED.glob("2*")
NAMES = json.loads((RECORDED / "names.json").read_text())
# Those of a replay differ in what they are about, not in their names.
ITS_OWN = {"cluster", "job_id", "log", "run_record", "findings", "reason"}


def keys(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from keys(each, f"{path}.{key}")
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from keys(each, f"{path}[{number}]")
    else:
        yield path, value


def properties(junit: Path) -> dict[str, dict[str, str]]:
    """The properties of each test that is about a run."""
    cases = ET.parse(junit).getroot().iter("testcase")
    found = {
        str(case.get("name")): {str(each.get("name")): str(each.get("value")) for each in case.iter("property")}
        for case in cases
    }
    return {name: given for name, given in found.items() if "run" in given}


@pytest.fixture
def replayed(user: UserFolder) -> Result:
    """Judge the recorded session again, with today's code."""
    shutil.copy(RECORDED / "recipes" / "recorded.yaml", user.path / "recipes")
    user.test(TEST_REFERENCES)
    return user.run(f"--replay={SESSION}", "--system", "local")


@pytest.mark.parametrize("path", sorted(SESSION.glob("*/*/record.json")), ids=lambda path: path.parent.name)
def test_every_key_of_a_record_is_still_there(path: Path) -> None:
    text = path.read_text()
    model: type[RunRecord | HealthRecord] = HealthRecord if path.parents[1].name == "checks" else RunRecord
    now: dict[str, Any] = dict(keys(json.loads(model.model_validate_json(text).model_dump_json(by_alias=True))))
    recorded = dict(keys(json.loads(text)))
    assert len(recorded) > 20
    assert {key: value for key, value in recorded.items() if now.get(key, "gone") != value} == {}


def test_its_runs_get_the_same_verdicts(replayed: Result) -> None:
    before = {case: told["verdict"] for case, told in properties(SESSION / "junit.xml").items()}
    assert set(before.values()) == {"PASS", "FAIL", "ERROR"}
    assert {case: told["verdict"] for case, told in properties(replayed.session / "junit.xml").items()} == before
    recorded = RunRecord.model_validate_json((SESSION / "runs" / "good" / "record.json").read_text())
    judged = RunRecord.model_validate(replayed.record("good"))
    assert {name: metric.value for name, metric in judged.metrics.items()} == pytest.approx(
        {name: metric.value for name, metric in recorded.metrics.items()}
    )
    assert replayed.record("diverges")["problem"]["kind"] == "not_finite"


def test_every_property_of_its_report_is_still_there(replayed: Result) -> None:
    now = {name: case.properties for name, case in replayed.cases.items()}
    for case, told in properties(SESSION / "junit.xml").items():
        assert set(told) <= set(now[case]), case
        same = set(told) - ITS_OWN
        assert {name: now[case][name] for name in same} == {name: told[name] for name in same}, case


def test_every_option_is_still_there() -> None:
    now = {form for option in OPTIONS for form in option.forms}
    assert len(NAMES["options"]) > 20
    assert set(NAMES["options"]) <= now


def test_every_kind_is_still_there() -> None:
    of_records, of_errors = tables("Problem kinds")
    assert len(NAMES["problem_kinds"]) > 20
    assert len(NAMES["finding_kinds"]) > 40
    assert set(NAMES["problem_kinds"]) <= {*of_records, *of_errors}
    assert set(NAMES["finding_kinds"]) <= set(table("Kinds of findings"))
    assert not [kind for kind in NAMES["problem_kinds"] if not re.fullmatch("[a-z_]+", kind)]
