"""The ledger: what was said of nodes and GPUs, and which nodes to avoid."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from pytest_llmbench.core.record.health import Finding, HealthRecord, Reading, Report, Severity
from pytest_llmbench.core.record.records import RunRecord, Timings, write_model
from pytest_llmbench.history.database import History, open_history
from pytest_llmbench.history.importing import import_sessions
from pytest_llmbench.history.ledger import entries_of, list_devices, nodes_to_avoid

DAY_S = 86_400.0
NOW = 1_790_000_000.0
ISOLATE = Severity.ISOLATE


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with open_history(tmp_path / "history.db") as opened:
        yield opened


def fault(host: str, subject: str = "GPU 1 (bus-1)", severity: Severity = ISOLATE, kind: str = "ecc") -> Finding:
    return Finding(host=host, subject=subject, kind=kind, severity=severity, message="rows failed to remap")


def check(
    history: History, folder: Path, days_ago: float, *findings: Finding, hosts: tuple[str, ...] = ("n1", "n2")
) -> None:
    name = f"s{days_ago:06.2f}"
    path = folder / name / "checks" / "gpu_ecc"
    gpus = {host: [f"H200 bus-{slot} GPU-{host}-{slot}" for slot in range(2)] for host in hosts}
    record = HealthRecord(
        session=name, token="t", system="s", cluster="slurm", folder=str(path), hosts=hosts, check="gpu_ecc",
        family="gpu", scope="node", timings=Timings(started=NOW - days_ago * DAY_S),
        report=Report(
            findings=findings, evidence={"gpus": gpus},
            readings=(Reading(host="n1", subject="GPU 0", statistic="gemm", value=700.0, unit="TFLOP/s"),),
        ),
    )  # fmt: skip
    path.mkdir(parents=True)
    write_model(path / "record.json", record)
    assert import_sessions(history, [folder / name]).new == 1


def test_a_node_is_avoided_after_two_sessions_with_faults(history: History, tmp_path: Path) -> None:
    """Two faults of one session are one; after 14 days a fault is forgotten."""
    check(history, tmp_path, 10.0, fault("n1"), fault("n1", kind="xid"))
    assert nodes_to_avoid(history, now=NOW) == {}
    check(history, tmp_path, 1.0, fault("n1"), fault("n2", severity=Severity.MONITOR))
    (why,) = nodes_to_avoid(history, now=NOW).values()
    assert "faults in 2 sessions of the last 14 days, the newest in s001.00" in why
    assert nodes_to_avoid(history, now=NOW + 5 * DAY_S) == {}
    assert set(nodes_to_avoid(history, days=30.0, repeats=2, now=NOW + 5 * DAY_S)) == {"n1"}
    assert nodes_to_avoid(history, repeats=3, now=NOW) == {}


def test_a_node_that_failed_under_a_run_is_blamed(history: History, tmp_path: Path) -> None:
    """The node of an earlier attempt is blamed too, though the last attempt's hosts lack it."""
    recorded = Path(__file__).parents[2] / "data/session/20261123-113444-68012a/runs/good/record.json"
    record = RunRecord.read(recorded).model_copy(
        update={"hosts": ("n1", "n3"), "lost_nodes": ("n2",), "judgements": ()}
    )
    for days, simulated in ((3.0, "kill@3"), (2.0, None), (1.0, None)):
        folder = tmp_path / f"s{days}" / "runs" / "good"
        folder.mkdir(parents=True)
        told = {"session": f"s{days}", "simulated": simulated, "timings": Timings(started=NOW - days * DAY_S)}
        write_model(folder / "record.json", record.model_copy(update=told))
        import_sessions(history, [folder.parents[1]])
    (lost,) = list_devices(history, node="n2", now=NOW)
    assert (lost.faults, lost.avoid is None) == (2, False)
    assert {each.faults for each in list_devices(history, now=NOW) if each.node in {"n1", "n3"}} == {0}


def test_a_setting_is_no_fault_of_a_node(history: History, tmp_path: Path) -> None:
    for days in (1.0, 2.0):
        check(
            history, tmp_path, days, fault("n1", severity=Severity.CONFIGURE), fault("n1", kind="a"),
            fault("n2", kind="a"),
        )  # fmt: skip
    assert nodes_to_avoid(history, now=NOW) == {}


def test_a_gpu_keeps_its_history_on_another_node(history: History, tmp_path: Path) -> None:
    check(history, tmp_path, 3.0, fault("n1"))
    check(history, tmp_path, 2.0, fault("n2", "mlx5_0"))
    gpu, *_ = list_devices(history, device="GPU-n1-1", now=NOW)
    assert (gpu.kind, gpu.node, gpu.sessions) == ("gpu", "n1", 1)
    (entry,) = entries_of(history, "GPU-n1-1")
    assert (entry["what"], entry["session"]) == ("ISOLATE ecc", "s003.00")
    assert [each.name for each in list_devices(history, node="n2") if each.kind == "part"] == ["n2 mlx5_0"]
    said = [entry["what"] for entry in entries_of(history, "n1")]
    assert said.count("gemm") == 2
    assert {"FAIL", "PASS", "ISOLATE ecc"} <= set(said)


def test_a_ledger_is_plain_data(history: History, tmp_path: Path) -> None:
    check(history, tmp_path, 1.0, fault("n1"))
    told = json.loads(json.dumps([asdict(each) for each in list_devices(history, now=NOW)]))
    assert {each["name"] for each in told} == {"n1", "n2", "GPU-n1-0", "GPU-n1-1"}
    assert next(each for each in told if each["name"] == "n1")["faults"] == 1
