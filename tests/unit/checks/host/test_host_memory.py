"""Memory: less than the others have, or in use before anything has begun."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.checks.base import Answer, CheckSettings, get_check
from pytest_llmbench.checks.host.memory import read_meminfo
from pytest_llmbench.core.record.health import Report, Severity
from tests.support.fleet import HOST_FACTS, ProcessFleet, cpu_site

GIB = 2**20  # in kB


def text(total: int, available: int) -> str:
    return f"MemTotal:       {total} kB\nMemFree:  1 kB\nMemAvailable:   {available} kB\nHugePages_Total:       0\n"


def run(folder: Path, texts: Mapping[str, str | None], **options: Any) -> Report:
    """Judge nodes whose memory is this, which no test can have for real."""
    fleet = ProcessFleet(site=cpu_site(len(texts)), hosts=tuple(texts), folder=folder)
    fleet._known["host-facts"] = [
        Answer(host=host, rank=rank, local_rank=0, data={**HOST_FACTS.model_dump(), "meminfo": words})
        for rank, (host, words) in enumerate(texts.items())
    ]
    return get_check("memory").run(fleet, CheckSettings(options=options))


def test_a_node_that_lacks_a_module_is_found(tmp_path: Path) -> None:
    """The kernel keeps a little back, and not the same everywhere: that is no difference."""
    texts = {"a": text(512 * GIB, 500 * GIB), "b": text(511 * GIB, 500 * GIB), "c": text(448 * GIB, 440 * GIB)}
    report = run(tmp_path, texts)
    (finding,) = report.findings
    assert (finding.host, finding.severity) == ("c", Severity.ISOLATE)
    assert finding.message == "448.00 GiB; 511.00 GiB on b, a"
    assert len(report.readings) == 6


@pytest.mark.parametrize(
    ("options", "found"),
    [({}, True), ({"available_percent": 25}, False), ({"available_gib": 30}, False), ({"available_gib": 31}, True)],
)
def test_memory_in_use(tmp_path: Path, options: dict[str, Any], found: bool) -> None:
    report = run(tmp_path, {"a": text(64 * GIB, 30 * GIB)}, **options)
    assert [finding.kind for finding in report.findings] == (["memory_in_use"] if found else [])


@pytest.mark.parametrize("words", [None, "", "MemTotal: 64 kB\n", "MemAvailable: many kB\nMemTotal: 5 kB\n"])
def test_a_node_that_does_not_say_is_no_pass(tmp_path: Path, words: str | None) -> None:
    report = run(tmp_path, {"a": text(64 * GIB, 60 * GIB), "b": words})
    assert report.unjudged.keys() == {"b"}
    assert {reading.host for reading in report.readings} == {"a"}


def test_a_reference_of_this_system_counts(tmp_path: Path) -> None:
    fleet = ProcessFleet(site=cpu_site(1), hosts=("a",), folder=tmp_path)
    promised: dict[str, Any] = {
        "name": "contract", "statistic": "memory_total", "at_least": "1000000 GiB", "why": "promised", "source": "it",
        "date": "2026-01-01", "applies_to": {"system": "test"},
    }  # fmt: skip
    settings = CheckSettings.model_validate({"references": [promised], "options": {"available_gib": 0}})
    (finding,) = get_check("memory").run(fleet, settings).findings
    assert (finding.reference, finding.kind) == ("contract", "below_reference")


@given(st.dictionaries(st.from_regex(r"[A-Za-z]\w{0,8}", fullmatch=True).filter(str.isascii), st.integers(0, 2**50)))
def test_sizes_are_read_back(sizes: dict[str, int]) -> None:
    written = "".join(f"{name}:   {size} kB\n" for name, size in sizes.items())
    assert read_meminfo(f"{written}HugePages_Free:   3\n") == {name: 1024 * size for name, size in sizes.items()}
