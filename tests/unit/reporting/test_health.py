"""The health table."""

from __future__ import annotations

from pytest_llmbench.reporting.health import render_health


def row(check: str, host: str, verdict: str, **more: object) -> dict[str, object]:
    return {"check": check, "host": host, "verdict": verdict, "nodes": 1, **more}


def test_a_check_has_a_line_and_the_same_reason_is_told_once() -> None:
    rows = [row("limits", f"n{i}", "PASS") for i in range(1, 60)]
    rows += [row("limits", f"n{i}", "FAIL", reason=f"n{i} nofile: too low [CONFIGURE]") for i in (60, 61)]
    lines = [line for _, line in render_health(rows, 80)]
    assert lines[1] == "limits  FAIL     2 FAIL, 59 PASS"
    assert lines[2:] == ["FAIL limits on n60, n61: nofile: too low [CONFIGURE]"]


def test_a_check_of_all_nodes_shows_what_it_measured() -> None:
    rows = [row("all_reduce", "", "PASS", nodes=8, measured="busbw_8GiB 235 GB/s")]
    assert [line for _, line in render_health(rows, 80)][1] == "all_reduce  PASS     8      busbw_8GiB 235 GB/s"


def test_what_is_true_of_many_checks_is_told_once() -> None:
    rows = [row(check, "n1", "SKIP", reason="no GPUs") for check in ("gpu_ecc", "gpu_xid")]
    assert [line for _, line in render_health(rows, 80)][3:] == ["SKIP gpu_ecc, gpu_xid on n1: no GPUs"]


def test_hints_are_shown_although_the_node_passes() -> None:
    rows = [row("tuning", "n1", "PASS", hints="n1: swap is on [MONITOR swap]")]
    assert ("", "hint tuning on n1: swap is on [MONITOR swap]") in list(render_health(rows, 80))
