"""A damaged answer of a node is told with the node and the field, and is never a pass."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.checks.answers import read_per_host
from pytest_llmbench.checks.base import Answer, CheckSettings, Site, get_check
from pytest_llmbench.checks.host.nodes.clock import NodeClock
from pytest_llmbench.checks.host.nodes.facts import HostFacts
from pytest_llmbench.core.recipe.environments import Container, Environment
from tests.support.fleet import HOST_FACTS, AnsweringFleet

MOUNT = {"point": "/", "type": "ext4", "source": "/dev/sda"}
SMI = {"command": "nvidia-smi", "code": 0, "error": None}
RATES: dict[str, Any] = {"device": "H200", "setting": {}, "gemm": None, "memory": None, "host_device": None}
NO_PRODUCTS = {"side": 8, "factors": "f00d", "precisions": {}, "lacking": {}}


@pytest.mark.parametrize(("check", "gpus", "data", "field"), [
    ("limits", 0, {}, "limits: Field required"),
    ("limits", 0, {**HOST_FACTS.model_dump(), "limits": {"soft": {}}}, "limits.soft.nofile: Field required"),
    ("memory", 0, {**HOST_FACTS.model_dump(), "memory": {"total": 5}}, "memory.available: Field required"),
    ("tuning", 0, {**HOST_FACTS.model_dump(), "tunings": 5}, "tunings: Extra inputs are not permitted"),
    ("clock", 0, {"time": "noon"}, "time: Input should be a valid number"),
    ("disk", 0, {"folders": {"shared": {"path": "/x"}}}, "folders.shared.why: Field required"),
    ("shared_folder", 0, {"read": None}, "mount: Field required"),
    ("jit_cache", 0, {"folders": {"x": {"mount": MOUNT}}}, "folders.x.folder: Field required"),
    ("gpu_inventory", 8, {"smi": SMI}, "smi.text: Field required"),
    ("gpu_xid", 8, {"smi": {**SMI, "text": ""}, "smi_file": "", "kernel_log": {"lines": 5}}, "nvlink: Field required"),
    ("gpu_nvlink", 8, {"smi": {**SMI, "code": "0"}}, "smi.code: Input should be a valid integer"),
    ("dcgm", 8, {"missing": None, "output": {"command": "dcgmi"}}, "output.code: Field required"),
    ("dcgm", 8, {"missing": None, "output": None}, "all of it: Value error, either `missing` or `output`"),
    ("storage", 8, {"bytes": 1, "write_s": 0.0}, "write_s: Input should be greater than 0 (and 8 more)"),
    ("gemm", 8, RATES, "gemm: Field required"),
    ("gemm", 8, {**RATES, "gemm": NO_PRODUCTS}, "gemm.precisions: Dictionary should have at least 1 item"),
    ("memory_bandwidth", 8, {**RATES, "memory": "1e12"}, "memory: Input should be a valid number"),
    ("host_device_bandwidth", 8, {**RATES, "host_device": {}}, "host_device.host_to_device: Field required"),
    ("sustained", 8, {"device": "H200", "rates": [[1.0, 0.0]]}, "precision: Field required"),
    ("all_reduce", 8, {"wrong": {"all_reduce": None}}, "wrong.all_reduce: Input should be a valid integer"),
    ("nccl_topology", 8, {"devices": [{"bus": "0"}]}, "devices.0.driver: Field required"),
])  # fmt: skip
def test_a_damaged_answer_is_named(tmp_path: Path, check: str, gpus: int, data: Mapping[str, Any], field: str) -> None:
    site = Site(system="test", nodes=2, gpus_per_node=gpus, scale="full")
    report = get_check(check).run(AnsweringFleet(site, ("a", "b"), lambda *_: data, tmp_path), CheckSettings())
    assert report.unjudged.keys() == {"a", "b"}
    assert f"rank 0: its answer is damaged: {field}" in report.unjudged["a"]
    assert not report.findings
    assert not report.readings


def test_the_other_nodes_are_read() -> None:
    whole = HOST_FACTS.model_dump()
    answers: list[Answer] = [
        Answer(host="a", rank=0, local_rank=0, data=whole),
        Answer(host="b", rank=1, local_rank=0, data={**whole, "limits": None, "paths": None}),
        Answer(host="c", rank=2, local_rank=0, data=None, why="it hangs"),
    ]
    facts, unjudged = read_per_host(answers, HostFacts)
    assert facts == {"a": HOST_FACTS}
    assert unjudged["b"].startswith("rank 1: its answer is damaged: limits: ")
    assert "(and 1 more)" in unjudged["b"]
    assert unjudged["c"] == "rank 2: it hangs"


@pytest.mark.parametrize("number", [float("nan"), float("inf"), True, "1.0"])
def test_what_is_not_a_number_is_damage(number: object) -> None:
    told = {"time": number, "ahead_s": 0.0, "uncertainty_s": 0.0, "mount": None, "kernel": None}
    _, unjudged = read_per_host([Answer(host="a", rank=0, local_rank=0, data=told)], NodeClock)
    assert "time: " in unjudged["a"]


def test_what_was_asked_for_has_to_be_there(tmp_path: Path) -> None:
    """A node that leaves a path or a container runtime out was not checked for it."""
    image = Environment(container=Container(runtime="docker", image="image:1"))
    site = Site(system="test", nodes=1, gpus_per_node=0, env={"CUDA_HOME": "/cuda"}, environments={"nemo": image})
    fleet = AnsweringFleet(site, ("a",), lambda *_: HOST_FACTS.model_dump(), tmp_path)
    for check in ("container_runtime", "environment"):
        report = get_check(check).run(fleet, CheckSettings())
        assert "its answer is damaged: containers.docker: Field required" in report.unjudged["a"]
    looks = AnsweringFleet(site, ("a",), lambda *_: {"paths": {}}, tmp_path)
    report = get_check("data_staging").run(looks, CheckSettings(options={"paths": [{"path": "/data"}]}))
    assert "its answer is damaged: paths./data: Field required" in report.unjudged["a"]


def test_a_collective_that_a_rank_did_not_check_is_no_pass(tmp_path: Path) -> None:
    site = Site(system="test", nodes=2, gpus_per_node=1)
    point = {"size": 8, "count": 2, "dtype": "float32", "in_place": {"time_us": 1.0, "algbw": 1.0, "busbw": 1.0}}
    measured = {"curves": {}, "unsupported": {}, "notes": [], "device": "H200"}
    whole = {**measured, "curves": {"all_reduce": {"collective": "all_reduce", "points": [point], "complete": True}}}
    for told, hosts, field in (
        ({"wrong": {}, "measured": measured}, {"a"}, "measured.curves.all_reduce"),
        ({"wrong": {}, "measured": whole}, {"a", "b"}, "wrong.all_reduce"),
    ):
        fleet = AnsweringFleet(site, ("a", "b"), lambda *_, told=told: told, tmp_path)
        report = get_check("all_reduce").run(fleet, CheckSettings())
        assert report.unjudged.keys() == hosts
        assert f"its answer is damaged: {field}: Field required" in report.unjudged["a"]


@pytest.mark.parametrize(("game", "field"), [
    ({}, "games.0: Value error, one of `missing`, `error` and `measured` has to be there"),
    ({"measured": {"busbw": 1.0}}, "games.0.measured.bytes: Field required"),
    ({"missing": [1], "error": "no route"}, "games.0: Value error, one of"),
])  # fmt: skip
def test_a_damaged_game_is_no_measurement(tmp_path: Path, game: dict[str, Any], field: str) -> None:
    told = {"device": "H200", "games": [{"round": 0, "group": 0, **game}], "stopped": None}
    fleet = AnsweringFleet(Site(system="test", nodes=2, gpus_per_node=2), ("a", "b"), lambda *_: told, tmp_path)
    report = get_check("nvlink").run(fleet, CheckSettings())
    assert report.unjudged.keys() == {"a", "b"}
    assert f"rank 0: its answer is damaged: {field}" in report.unjudged["a"]
