"""A check is judged by physics again from the answers that a session keeps."""

import json
from pathlib import Path
from typing import Any

from pytest_llmbench.checks.base import CheckSettings, Site, get_check
from pytest_llmbench.core.plain import write_plain
from pytest_llmbench.core.wire import layout
from pytest_llmbench.evidence.recheck import RecordedFleet
from tests.support.hardware import node


def keep(folder: Path, entry: str, config: dict[str, Any], *answers: dict[str, Any]) -> None:
    (folder / "answers").mkdir(parents=True)
    (folder / layout.TASK).write_text(json.dumps({"entry": entry, "config": config}))
    for rank, data in enumerate(answers):
        write_plain(layout.answer(folder, rank), {"host": "a", "data": data})


def test_the_facts_of_the_machine_are_among_the_answers_that_are_kept(tmp_path: Path) -> None:
    """The facts may have been asked for by an earlier check."""
    steps = tmp_path / "memory_bandwidth" / layout.STEPS
    keep(tmp_path / "gemm" / layout.STEPS / "002-machine", "pytest_llmbench.workloads.node.hardware:facts",
         {"sysfs": "/sys"},
         node("H200", 2).model_dump(mode="json"))  # fmt: skip
    rate: dict[str, Any] = {"device": "NVIDIA H200", "setting": {}, "gemm": None, "memory": 2.0e12, "host_device": None}
    keep(steps / "001-compute", "", {}, rate, {**rate, "memory": 4.36e12})
    site = Site(system="test", nodes=1, gpus_per_node=2, selected=("memory_bandwidth",))
    fleet: Any = RecordedFleet(site, ("a",), steps=steps, checks=tmp_path)
    report = get_check("memory_bandwidth").run(fleet, CheckSettings())
    assert [(finding.subject, finding.kind) for finding in report.findings] == [("GPU 0", "below_physics")]
    assert report.bounds == (
        "memory_triad: physics expects 4278 GB/s, FAIL below 3636: 0.87 of 6144 bit × 3201 MHz × 2 = 4917 GB/s",
    )
