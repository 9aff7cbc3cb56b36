"""DCGM's diagnostic, as JSON of three versions: the same results, whoever tells them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmbench.checks.dcgm.report import Diagnosis, Status, read_dcgm
from tests.standins.dcgm_outputs import FAULTY, VERSIONS, Said, printed

Sample = Callable[[str], Path]


def is_healthy(diagnosis: Diagnosis) -> bool:
    passed = all(result.status is Status.PASS and not result.recorded for result in diagnosis.results)
    whole = diagnosis.unreadable is None and diagnosis.runtime_error is None
    return whole and not diagnosis.uncovered and bool(diagnosis.results) and passed


def statuses(diagnosis: Diagnosis, key: str) -> list[tuple[tuple[str, ...], Status]]:
    (test,) = [each for each in diagnosis.tests if each.key == key]
    return [(result.entities, result.status) for result in test.results]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_that_passes_is_healthy(version: str) -> None:
    diagnosis = read_dcgm(printed(version))
    assert is_healthy(diagnosis)
    assert {"memory", "pcie", "diagnostic", "targeted_stress"} <= {test.key for test in diagnosis.tests}
    assert diagnosis.gpus == 2
    assert diagnosis.version == (None if version.startswith("2") else version)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_failure_names_its_gpu_and_why(version: str) -> None:
    diagnosis = read_dcgm(printed(version, {"memory": {1: Said("Fail", FAULTY)}}))
    assert statuses(diagnosis, "memory") == [(("GPU 0",), Status.PASS), (("GPU 1",), Status.FAIL)]
    (recorded,) = [recorded for result in diagnosis.results for recorded in result.recorded]
    assert recorded.text == FAULTY.text
    numbers = (recorded.error_id, recorded.category, recorded.severity)
    assert numbers == ((52, 10, 2) if version in VERSIONS[1:] else (None, None, None))
    assert not is_healthy(diagnosis)


def test_a_gpu_or_a_test_without_a_result_is_told() -> None:
    document = json.loads(printed("3.3.9"))
    groups = document["DCGM GPU Diagnostic"]["test_categories"]
    next(each for each in groups if each["category"] == "Hardware")["tests"][0]["results"][1] = None
    diagnosis = read_dcgm(json.dumps(document))
    assert diagnosis.uncovered == ("GPU Memory has no result of GPU 1",)
    assert not is_healthy(diagnosis)
    document = json.loads(printed("4.4.2"))
    document["entity_groups"][0]["entities"].append({"device_id": "2330", "entity_id": 2})
    assert read_dcgm(json.dumps(document)).uncovered == ("results of 2 GPUs of 3",)
    document = json.loads(printed("4.4.2"))
    document["DCGM Diagnostic"]["test_categories"][0]["tests"][0]["results"] = []
    assert statuses(read_dcgm(json.dumps(document)), "software") == [((), Status.SKIP)]


def test_what_a_summary_says_beyond_its_results_counts() -> None:
    document = json.loads(printed("4.4.2"))
    test = document["DCGM Diagnostic"]["test_categories"][0]["tests"][0]
    test["test_summary"] = {"status": "Fail", "warnings": [{"warning": "no NVML", "error_id": 6}]}
    assert statuses(read_dcgm(json.dumps(document)), "software")[-1] == ((), Status.FAIL)
    document = json.loads(printed("4.4.2", {"software": {1: Said("Pass", FAULTY)}}))
    test = document["DCGM Diagnostic"]["test_categories"][0]["tests"][0]
    test["test_summary"]["warnings"].append({"warning": "no NVML", "error_id": 6})
    told = [
        (result.entities, recorded.text)
        for result in read_dcgm(json.dumps(document)).results
        for recorded in result.recorded
    ]
    assert told == [(("GPU 1",), FAULTY.text), ((), "no NVML")]


@pytest.mark.parametrize(("text", "why"), [
    ("", "nothing"),
    ("Successfully ran diagnostic for group.\n", "no results"),
    ("pyxis: failed to import docker image\n", "no results"),
    ('{"DCGM Diagnostic": {"test_categories": []}}', "no tests"),
    ('{"DCGM Diagnostic": {}}', "no tests"),
    ('{"DCGM Diagnostic": null}', "not an object"),
    (printed("4.4.2").replace('"Pass"', '"Great"'), "'Great' is not a status"),
    (printed("3.3.9").replace('"Pass"', "1"), "1 is not a status"),
    (printed("4.4.2").replace('"category": "Stress",', ""), "no category"),
    (printed("4.4.2") * 2, "results of 2 nodes"),
])  # fmt: skip
def test_what_cannot_be_read_says_why(text: str, why: str) -> None:
    diagnosis = read_dcgm(text)
    assert why in (diagnosis.unreadable or "")
    assert not is_healthy(diagnosis)


@pytest.mark.parametrize("text", [
    '{"DCGM GPU Diagnostic": {"version": "3.3.9", "runtime_error": "Error: no host engine"}}',
    "Error: unable to establish a connection to the specified host: localhost\n",
])  # fmt: skip
def test_an_error_without_results_is_kept(text: str) -> None:
    diagnosis = read_dcgm(text)
    assert (diagnosis.runtime_error or "").startswith("Error: ")
    assert not is_healthy(diagnosis)


WHOLE = {version: printed(version) for version in VERSIONS}


@given(version=st.sampled_from(VERSIONS), part=st.floats(0, 1, exclude_max=True))
@settings(deadline=None)
def test_what_is_cut_anywhere_is_never_healthy(version: str, part: float) -> None:
    text = WHOLE[version].rstrip()
    assert not is_healthy(read_dcgm(text[: int(part * len(text))]))


@given(text=st.binary(max_size=400).map(lambda raw: raw.decode(errors="replace")) | st.text(max_size=400))
@settings(deadline=None)
def test_noise_is_never_healthy(text: str) -> None:
    assert not is_healthy(read_dcgm(text))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["Skip", "Great"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def places(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(each for key, item in inner for each in places(item, (*path, key)))]


@given(data=st.data(), version=st.sampled_from(VERSIONS), value=VALUES)
@settings(deadline=None)
def test_a_value_of_another_kind_never_raises(data: st.DataObject, version: str, value: object) -> None:
    """Anywhere in a document; in the place of a status, nothing but a status is healthy."""
    document = json.loads(WHOLE[version])
    *way, last = data.draw(st.sampled_from([path for path in places(document) if path]))
    inner: Any = document
    for key in way:
        inner = inner[key]
    inner[last] = value
    assert not (is_healthy(read_dcgm(json.dumps(document))) and last == "status")


def test_real_json_of_version_4(sample: Sample) -> None:
    """A GB10 whose persistence mode is off; where plugins may not run, what they would have tested is skipped."""
    quick = read_dcgm(sample("dcgm/dcgm4_gb10-level1.json").read_text())
    assert (quick.version, quick.driver, quick.gpus) == ("4.2.3", "580.82.09", 1)
    ((recorded,),) = [result.recorded for result in quick.results]
    assert (recorded.error_id, recorded.category, recorded.severity) == (29, 8, 5)
    skips = read_dcgm(sample("dcgm/dcgm4_gb10-level2-partial-skip.json").read_text())
    assert [(test.key, test.skipped) for test in skips.tests] == [("software", False), ("memory", True), ("pcie", True)]
    ran = read_dcgm(sample("dcgm/dcgm4_gb10-level2-plugins-allowed.json").read_text())
    assert [len(result.recorded) for result in ran.results] == [1, 0, 0]
    assert [result.status for result in ran.results] == [Status.FAIL, Status.PASS, Status.PASS]


def test_real_output_of_nvvs(sample: Sample) -> None:
    """A line before the JSON, holes in its lists, upper case, GPUs as a number or as a list in a text."""
    diagnosis = read_dcgm(sample("dcgm/nvvs_v3.1.0_real_output_from_JsonResultTests.txt").read_text())
    assert (diagnosis.version, diagnosis.gpus, is_healthy(diagnosis)) == ("3.1.0", 8, True)
    assert len(diagnosis.tests) == 10


def test_built_json_is_as_the_schema_has_it_which_is_no_result(sample: Sample) -> None:
    schema = json.loads(sample("dcgm/dcgm_v4.4.2_diag_schema.json").read_text())
    _conforms(json.loads(printed("4.4.2", {"memory": {1: Said("Fail", FAULTY)}})), schema)
    assert not is_healthy(read_dcgm(sample("dcgm/dcgm_v4.4.2_diag_schema.json").read_text()))


def _conforms(value: Any, schema: dict[str, Any]) -> None:
    kinds: dict[str, Any] = {"object": dict, "array": list, "string": str, "integer": int}
    assert isinstance(value, kinds[schema["type"]])
    assert set(schema.get("required", ())) <= set(value if isinstance(value, dict) else ())
    for name, inner in schema.get("properties", {}).items():
        if name in value:
            _conforms(value[name], inner)
    for each in value if isinstance(value, list) else ():
        _conforms(each, schema["items"])


def test_lines_around_the_results_cost_nothing() -> None:
    text = f"WARNING: {{limits}}\n{{not JSON\n{printed('4.4.2')}\nbye\n"
    assert is_healthy(read_dcgm(text))
