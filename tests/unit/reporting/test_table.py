"""The tables of verdicts and of health."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.record.records import Verdict
from pytest_llmbench.reporting.table import render, render_health

PASSED = {
    "run": "opt125m", "nodes": 1, "statistic": "throughput", "value": 212345.6, "unit": "words/s",
    "threshold": ">= 200000 words/s", "verdict": "PASS", "run_record": "runs/opt125m/record.json",
}  # fmt: skip


def test_a_test_is_a_line_under_a_header() -> None:
    assert list(render([PASSED], 80)) == [
        ("", "run      nodes  statistic   measured         threshold           verdict"),
        ("PASS", "opt125m  1      throughput  212,346 words/s  >= 200,000 words/s  PASS"),
    ]


def test_nothing_measured_is_a_dash() -> None:
    _, (verdict, line) = render([{"run": "opt125m", "verdict": "SKIP", "threshold": ""}], 80)
    assert verdict == "SKIP"
    assert line.split() == ["opt125m", "—", "—", "—", "—", "SKIP"]


def test_a_measured_zero_is_a_number() -> None:
    _, (_, line) = render([PASSED | {"value": 0.0}], 80)
    assert "  0 words/s  " in line


@pytest.mark.parametrize(("verdict", "shown"), [("PASS", False), ("SKIP", False), ("FAIL", True), ("ERROR", True)])
def test_who_has_to_look_closer_is_told_where(verdict: str, *, shown: bool) -> None:
    """A failure and an error point to the run record; a pass and a skip need none."""
    lines = [line for _, line in render([PASSED | {"verdict": verdict}], 80)]
    assert ("    run record: runs/opt125m/record.json" in lines) is shown


@pytest.mark.parametrize("width", [80, 120])
def test_a_reason_is_wrapped_under_its_line(width: int) -> None:
    """A long reason, or one of several lines, is indented, and fills the width of the terminal without leaving it."""
    reason = "first\n\n" + "word " * 60
    _, _, *lines = render([PASSED | {"verdict": "FAIL", "reason": reason, "run_record": None}], width)
    assert {verdict for verdict, _ in lines} == {"FAIL"}
    assert all(line.startswith("    ") for _, line in lines)
    assert width - 5 < max(len(line) for _, line in lines) <= width
    assert " ".join(line.strip() for _, line in lines) == " ".join(reason.split())


def test_the_reference_is_named_where_the_terminal_is_wide_enough() -> None:
    rows = [PASSED | {"reference": "azure_200k"}, PASSED]
    _, (_, named), (_, own) = render(rows, 120)
    assert (named.split()[-2:], own.split()[-2:]) == (["PASS", "azure_200k"], ["PASS", "—"])
    assert list(render(rows, len(named))) == list(render(rows, 120))
    _, (_, named), _ = render(rows, len(named) - 1)
    assert named.split()[-1] == "PASS"


def test_the_nodes_of_each_run_are_told() -> None:
    on = [PASSED | {"run": f"group{at}", "hosts": hosts} for at, hosts in enumerate(("n1,n2", "n3,n4", "n1,n2"))]
    assert [line for _, line in render(on, 80)][-2:] == ["on n1, n2: group0, group2", "on n3, n4: group1"]
    *_, (_, last) = render([PASSED | {"hosts": "n1"}, PASSED | {"hosts": "n1", "run": "b"}], 80)
    assert last.startswith("b")
    (line,) = [line for _, line in render([PASSED | {"hosts": ",".join(f"n{i}" for i in range(128))}], 80)][2:]
    assert line == "on n0, n1, n2, n3, n4, n5, n6, n7 and 120 more: opt125m"


ROWS = st.fixed_dictionaries(
    {"verdict": st.sampled_from([*map(str, Verdict)])},
    optional={
        "run": st.text("abc", max_size=12), "nodes": st.integers(1, 4096), "statistic": st.text("abc", max_size=12),
        "threshold": st.text("abc", max_size=12), "reason": st.text("abc ", max_size=300),
    },
).flatmap(
    lambda row: st.one_of(
        st.just(row), st.floats(allow_nan=False).map(lambda value: {**row, "value": value, "unit": "s"})
    )
)  # fmt: skip


@given(st.lists(ROWS, max_size=5))
def test_columns_line_up_whatever_is_in_them(rows: list[dict[str, Any]]) -> None:
    (_, header), *lines = render(rows, 80)
    at = header.index("verdict")
    tests = [(verdict, line) for verdict, line in lines if not line.startswith("    ") or line[at:] == verdict]
    assert [verdict for verdict, _ in tests] == [row["verdict"] for row in rows]
    assert all(line[at:] == verdict for verdict, line in tests)


def row(check: str, host: str, verdict: str, **more: object) -> dict[str, object]:
    return {"check": check, "host": host, "verdict": verdict, "nodes": 1, **more}


def test_a_check_has_a_line_and_the_same_reason_is_told_once() -> None:
    rows = [row("limits", f"n{i}", "PASS") for i in range(1, 60)]
    rows += [row("limits", f"n{i}", "FAIL", reason=f"n{i} nofile: too low [CONFIGURE]") for i in (60, 61)]
    lines = [line for _, line in render_health(rows, 80)]
    assert lines[1] == "limits  FAIL     2 FAIL, 59 PASS"
    assert lines[2:] == [
        "bad nodes: n60 (limits), n61 (limits)",
        "FAIL limits on n60, n61: nofile: too low [CONFIGURE]",
    ]


def test_a_check_of_all_nodes_shows_what_it_measured() -> None:
    rows = [row("all_reduce", "", "PASS", nodes=8, measured="busbw_8GiB 235 GB/s")]
    assert [line for _, line in render_health(rows, 80)][1] == "all_reduce  PASS     8      busbw_8GiB 235 GB/s"


@pytest.mark.parametrize("verdict", Verdict)
def test_every_verdict_on_a_check_is_shown(verdict: Verdict) -> None:
    """A test of a user's own on a check may be INCONCLUSIVE."""
    lines = [line for _, line in render_health([row("limits", "n1", str(verdict), reason="why")], 80)]
    assert lines[1].split() == ["limits", str(verdict), "1"]
    assert (f"{verdict} limits on n1: why" in lines) is (verdict is not Verdict.PASS)


def test_what_is_true_of_many_checks_is_told_once() -> None:
    rows = [row(check, "n1", "SKIP", reason="no GPUs") for check in ("gpu_ecc", "gpu_xid")]
    assert [line for _, line in render_health(rows, 80)][3:] == ["SKIP gpu_ecc, gpu_xid on n1: no GPUs"]


def test_hints_are_shown_although_the_node_passes() -> None:
    rows = [row("tuning", "n1", "PASS", hints="n1: swap is on [MONITOR swap]")]
    assert ("", "hint tuning on n1: swap is on [MONITOR swap]") in list(render_health(rows, 80))
