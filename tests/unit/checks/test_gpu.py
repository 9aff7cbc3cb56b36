"""GPU checks on processes that pose as nodes: the programs they ask are stand-ins, everything else is real."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.checks.base import CheckSettings, Site, all_checks, get_check
from pytest_llmbench.checks.gpu.base import GpuNodes
from pytest_llmbench.checks.gpu.kernel_log import KernelEvent
from pytest_llmbench.checks.gpu.nodes.facts import GpuFacts, KernelLog, ToolOutput
from pytest_llmbench.checks.gpu.nvidia_smi import read_smi
from pytest_llmbench.checks.gpu.nvlink import GpuNvlink, NvlinkOptions
from pytest_llmbench.checks.gpu.xid import meaning
from pytest_llmbench.core.record.health import Report, Severity
from tests.standins.nvidia_smi import BOOT, LOADED, bus, gpu_node, links_text, smi_xml
from tests.support.fleet import ProcessFleet, cpu_site

SITE = Site(system="test", nodes=3, gpus_per_node=2, gpu_model="H100 80GB HBM3", gpu_memory_gib=80)
GPU_CHECKS = [name for name, check in all_checks().items() if check.family == "gpu"]
XID = "[ 99.0] NVRM: Xid (PCI:0000:11:00): 48, pid=1, name=python, DBE\n"
STRAY = "<process_info><pid>77</pid><type>C</type><process_name>/opt/python</process_name></process_info>"
# Changes of GPU 1 of the node `bad`; its log and its links are bad, too.
BAD = {
    "<current_link_width>16x<": "<current_link_width>8x<", "<current_link_gen>5<": "<current_link_gen>1<",
    "<remapped_row_pending>No<": "<remapped_row_pending>Yes<",
    "<sram_threshold_exceeded>No<": "<sram_threshold_exceeded>Yes<", "<dram_uncorrectable>0<": "<dram_uncorrectable>3<",
    "hw_thermal_slowdown>Not Active<": "hw_thermal_slowdown>Active<",
    "<current_power_limit>700.00 W<": "<current_power_limit>500.00 W<",
    "<persistence_mode>Enabled<": "<persistence_mode>Disabled<", "<current_mig>Disabled<": "<current_mig>Enabled<",
    "<gpu_recovery_action>None<": "<gpu_recovery_action>GPU Reset Required<", "<processes>": f"<processes>{STRAY}",
    "<state>Completed<": "<state>Not Started<",
}  # fmt: skip
# Check -> what is found on `bad`, with its severity.
FOUND = {
    "gpu_inventory": {"mig": "CONFIGURE", "persistence": "CONFIGURE", "recovery_action": "RESET"},
    "gpu_ecc": {
        "sram_threshold": "ISOLATE", "ecc_uncorrectable": "RESET", "remap_pending": "RESET", "ecc_history": "MONITOR",
    },
    "gpu_xid": {"xid": "RESET"},
    "gpu_pcie": {"pcie_width": "ISOLATE", "pcie_gen": "ISOLATE"},
    "gpu_nvlink": {"nvlink_inactive": "RESET", "fabric": "RESET"},
    "gpu_throttle": {"hw_thermal_slowdown": "ISOLATE", "power_limit": "CONFIGURE", "unlike_others": "CONFIGURE"},
    "gpu_processes": {"stray_process": "CONFIGURE"},
}  # fmt: skip


def nodes_of(folder: Path, nodes: Mapping[str, Mapping[str, Any]]) -> ProcessFleet:
    """A fleet whose nodes are as `gpu_node` makes them."""
    env = {host: gpu_node(folder / "nodes" / host, **node) for host, node in nodes.items()}
    return ProcessFleet(site=SITE, hosts=tuple(nodes), folder=folder, env=env)


def found_on(report: Report, host: str) -> dict[str, str]:
    return {finding.kind: str(finding.severity) for finding in report.findings if finding.host == host}


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Report]:
    """All GPU checks on two good nodes, a bad one, and one that nobody can judge."""
    broken = {"xml": smi_xml()[:900], "links": "", "log": None}
    bad = {"xml": smi_xml(changes={1: BAD}), "links": links_text(inactive={1: 3}), "log": BOOT + LOADED + 2 * XID}
    fleet = nodes_of(tmp_path_factory.mktemp("gpus"), {"one": {}, "two": {}, "bad": bad, "cut": broken})
    reports = {name: get_check(name).run(fleet, CheckSettings()) for name in GPU_CHECKS}
    assert [probe.name for probe in fleet.asked] == ["gpu-facts"], "all checks share one look at the nodes"
    return reports


@pytest.mark.parametrize("name", FOUND)
def test_the_bad_node_is_found_no_good_one_and_one_that_cannot_be_judged_is_not_fit(
    reports: dict[str, Report], name: str
) -> None:
    """The evidence is plain and small."""
    report = reports[name]
    assert found_on(report, "bad") == FOUND[name]
    assert not [str(finding) for finding in report.findings if finding.host != "bad"]
    for finding in report.findings:
        assert bus(1) in finding.subject or finding.subject == "GPU 1"
        assert finding.action
    assert list(report.unjudged) == ["cut"]
    assert ("Operation not permitted" if name == "gpu_xid" else "whole") in report.unjudged["cut"]
    text = report.model_dump_json()
    assert Report.model_validate_json(text).evidence
    assert len(text) < 4 * 25_000


def test_an_xid_is_said_once_with_its_gpu(reports: dict[str, Report]) -> None:
    (finding,) = reports["gpu_xid"].findings
    assert finding.subject == f"GPU 1 ({bus(1)})"
    assert "Xid 48, 2 times" in finding.message


def test_without_gpus_every_check_says_so(tmp_path: Path) -> None:
    fleet = ProcessFleet(site=cpu_site(1), hosts=("a",), folder=tmp_path)
    assert all(get_check(name).run(fleet, CheckSettings()).skip for name in FOUND)
    assert not fleet.asked


def test_how_nvidia_smi_fails_says_what_the_node_needs(tmp_path: Path) -> None:
    """Findings where the cause is known; what is not known leaves a node unjudged, and never skipped."""
    fallen = {"xml": "Unable to determine the device handle for GPU0000:11:00.0: Unknown Error\n", "code": 255}
    no_driver = {"xml": "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", "code": 9}
    fleet = nodes_of(tmp_path, {"fallen": fallen, "driver": no_driver, "else": {"code": 255}, "absent": {}})
    for name in ("nvidia-smi", "dmesg"):
        (tmp_path / "nodes/absent/bin" / name).unlink()
    fleet.env["absent"]["PATH"] = str(tmp_path / "nodes/absent/bin")  # type: ignore[index]
    report = get_check("gpu_inventory").run(fleet, CheckSettings())
    assert found_on(report, "fallen") == {"fallen_off_the_bus": "REBOOT"}
    assert found_on(report, "driver") == {"driver_not_loaded": "REBOOT"}
    assert found_on(report, "absent") == {"nvidia_smi_missing": "CONFIGURE"}
    assert list(report.unjudged) == ["else"]
    for name in ("gpu_ecc", "gpu_pcie", "gpu_nvlink", "gpu_throttle", "gpu_processes"):
        assert set(get_check(name).run(fleet, CheckSettings()).unjudged) == {"fallen", "driver", "else", "absent"}
    assert list(get_check("gpu_xid").run(fleet, CheckSettings()).unjudged) == ["absent"]


def test_a_gpu_that_nvidia_smi_only_complains_of_is_found(tmp_path: Path) -> None:
    errors = "Unable to determine the device handle for GPU1: 0000:44:00.0: Unknown Error\n"
    short = smi_xml(1).replace("<attached_gpus>1<", "<attached_gpus>2<")
    words = {"xml": errors}
    fleet = nodes_of(
        tmp_path,
        {
            "counted": {"xml": short, "errors": errors}, "hidden": {"errors": errors}, "words": words,
            "none": {"xml": "No devices were found\n", "code": 6}, "good": {},
            "corrupt": {"errors": "WARNING: infoROM is corrupted at gpu 0000:1b:00.0\n"},
            "chatty": {"errors": "nvidia-smi: some notice\n"},
        },
    )  # fmt: skip
    report = get_check("gpu_inventory").run(fleet, CheckSettings())
    fallen = {"fallen_off_the_bus": "REBOOT"}
    assert {host: found_on(report, host) for host in fleet.hosts} == {
        "counted": fallen, "hidden": fallen, "words": fallen, "none": {"gpus_missing": "ISOLATE"}, "good": {},
        "corrupt": {"nvidia_smi_warns": "ISOLATE"}, "chatty": {"nvidia_smi_warns": "MONITOR"},
    }  # fmt: skip
    assert not report.unjudged
    assert all("GPU1" in finding.message for finding in report.findings if finding.kind == "fallen_off_the_bus")


@pytest.mark.parametrize(("tags", "kind"), [
    ("<unrepairable_memory>Yes</unrepairable_memory>", "memory_unrepairable"),
    ("<channel_repair_pending>Yes</channel_repair_pending>", "repair_pending"),
    ("<ecc_errors2><tpc_repair_pending>Yes</tpc_repair_pending></ecc_errors2>", "repair_pending"),
    ("<gpu_reset_status><reset_required>Yes</reset_required></gpu_reset_status>", "recovery_action"),
])  # fmt: skip
def test_repairs_that_wait_or_failed(tags: str, kind: str, tmp_path: Path) -> None:
    """Drivers write them at different places of a GPU's report."""
    xml = smi_xml().replace("</gpu>", f"{tags}</gpu>", 1)
    fleet = nodes_of(tmp_path, {"bad": {"xml": xml}, "good": {"xml": xml.replace("Yes", "No")}})
    check = "gpu_inventory" if kind == "recovery_action" else "gpu_ecc"
    report = get_check(check).run(fleet, CheckSettings())
    assert kind in found_on(report, "bad")
    assert kind not in found_on(report, "good")


def test_the_inventory_is_held_against_the_promise(tmp_path: Path) -> None:
    """Another model, less memory, fewer GPUs, a lost one, another driver."""
    other = {"NVIDIA H100 80GB HBM3": "NVIDIA H100 PCIe", "<total>81559 MiB<": "<total>40960 MiB<"}
    lost = {"<current_power_limit>700.00 W<": "<current_power_limit>[GPU is lost]<"}
    nodes = {
        "good": {}, "well": {}, "fine": {},
        "other": {"xml": smi_xml(changes={0: other})},
        "few": {"xml": smi_xml(1)},
        "lost": {"xml": smi_xml(changes={1: lost})},
        "old": {"xml": smi_xml(driver="545.23.08")},
    }  # fmt: skip
    report = get_check("gpu_inventory").run(nodes_of(tmp_path, nodes), CheckSettings())
    assert found_on(report, "other") == {
        "gpu_model": "CONFIGURE",
        "gpu_memory": "ISOLATE",
        "unlike_others": "CONFIGURE",
    }
    assert found_on(report, "few") == {"gpus_missing": "ISOLATE"}
    assert found_on(report, "lost") == {"gpu_lost": "REBOOT"}
    assert found_on(report, "old") == {"unlike_others": "CONFIGURE"}
    assert {finding.host for finding in report.findings} == {"other", "few", "lost", "old"}
    assert not report.unjudged


def test_options_change_what_is_expected(tmp_path: Path) -> None:
    """A site may want more than all GPUs have, and tolerate what it knows."""
    fleet = nodes_of(tmp_path, {"one": {"log": BOOT + LOADED + XID + "[1] NVRM: Xid (PCI:0000:10:00): 999, new\n"}})
    wanted: dict[str, dict[str, Any]] = {
        "gpu_pcie": {"gen": 6, "width": 32},
        "gpu_nvlink": {"links": 12, "speed_gb_s": 50},
        "gpu_processes": {"memory_mib": 0},
    }  # fmt: skip
    kinds = {
        name: get_check(name).run(fleet, CheckSettings(options=options)).findings for name, options in wanted.items()
    }
    assert {finding.kind for finding in kinds["gpu_pcie"]} == {"pcie_gen", "pcie_width"}
    assert {finding.kind for finding in kinds["gpu_nvlink"]} == {"nvlink_inactive", "nvlink_slow"}
    assert {finding.kind for finding in kinds["gpu_processes"]} == {"memory_in_use"}
    xids = get_check("gpu_xid").run(fleet, CheckSettings(options={"tolerated": [48]})).findings
    assert {(finding.message[:7], finding.severity) for finding in xids} == {
        ("Xid 48,", Severity.MONITOR), ("Xid 999", Severity.RESET),
    }  # fmt: skip


def test_a_process_of_an_unknown_type_is_no_display(tmp_path: Path) -> None:
    stray = {kind: STRAY.replace("<type>C<", f"<type>{kind}<") for kind in ("G", "C+G", "N/A")}
    nodes = {
        kind[0]: {"xml": smi_xml(changes={1: {"<processes>": f"<processes>{one}"}})} for kind, one in stray.items()
    }
    report = get_check("gpu_processes").run(nodes_of(tmp_path, nodes), CheckSettings())
    assert {finding.host: finding.severity for finding in report.findings} == {
        "G": Severity.MONITOR, "C": Severity.CONFIGURE, "N": Severity.CONFIGURE,
    }  # fmt: skip


def test_memory_beyond_that_of_allowed_processes_is_found(tmp_path: Path) -> None:
    """What an earlier job left next to a daemon; a daemon whose memory is hidden may have all of it."""
    daemon = "<process_info><pid>7</pid><type>C</type><process_name>/usr/bin/mps-server</process_name>{}</process_info>"
    own = {"few": "<used_memory>30 MiB</used_memory>", "all": "<used_memory>61000 MiB</used_memory>", "hidden": ""}
    used = {"<used>1 MiB<": "<used>61440 MiB<"}
    xml = {
        host: smi_xml(changes={0: {**used, "<processes>": "<processes>" + daemon.format(own[host])}}) for host in own
    }
    report = get_check("gpu_processes").run(
        nodes_of(tmp_path, {host: {"xml": text} for host, text in xml.items()}),
        CheckSettings(options={"allowed": ["mps-server"]}),
    )
    (finding,) = report.findings
    assert (finding.host, finding.kind) == ("few", "memory_in_use")
    assert finding.message == "61440 MiB in use, but no process is visible beyond 30 MiB of allowed ones"


def test_a_link_may_sleep_with_its_gpu(tmp_path: Path) -> None:
    asleep = {"<current_link_gen>5<": "<current_link_gen>1<", "<performance_state>P0<": "<performance_state>P8<"}
    fleet = nodes_of(tmp_path, {"one": {"xml": smi_xml(changes={0: asleep, 1: asleep})}})
    report = get_check("gpu_pcie").run(fleet, CheckSettings())
    assert not report.findings
    assert "not judged on 2 GPUs" in report.notes[0]


def test_a_log_that_lost_its_beginning_leaves_a_node_unjudged(tmp_path: Path) -> None:
    """Unless the site knows that it does; what is there is found all the same."""
    fleet = nodes_of(
        tmp_path, {"one": {"log": XID}, "two": {"log": BOOT + "[5] NVRM: Xid garbled\n"}, "none": {"log": None}}
    )
    report = get_check("gpu_xid").run(fleet, CheckSettings())
    assert found_on(report, "one") == {"xid": "RESET"}
    assert "does not reach back to the boot" in report.unjudged["one"]
    assert "cannot be read" in report.unjudged["two"]
    report = get_check("gpu_xid").run(fleet, CheckSettings(options={"whole_log": False}))
    assert list(report.unjudged) == ["two", "none"]
    assert "which lists Xids, cannot be read" in report.unjudged["none"]


def test_counters_that_are_not_known_are_no_pass(tmp_path: Path) -> None:
    unknown = {
        "gpu_ecc": {"<dram_uncorrectable>0<": "<dram_uncorrectable>N/A<"},
        "gpu_pcie": {">16x<": ">N/A<"},
        "gpu_throttle": {"hw_slowdown>Not Active<": "hw_slowdown>N/A<"},
        "gpu_processes": {"<used>1 MiB<": "<used>[N/A]<"},
        "gpu_inventory": {"<persistence_mode>Enabled<": "<persistence_mode>Not Supported<"},
    }
    nodes = {name: {"xml": smi_xml(changes={1: change})} for name, change in unknown.items()}
    rows = {"<remapped_row_failure>No<": "<remapped_row_failure>N/A<"}
    fleet = nodes_of(tmp_path, {**nodes, "rows": {"xml": smi_xml(changes={0: rows})}})
    for name in unknown:
        also = {"rows"} if name == "gpu_ecc" else set()
        assert set(get_check(name).run(fleet, CheckSettings()).unjudged) == {name} | also


def test_ecc_that_is_off_is_a_setting(tmp_path: Path) -> None:
    off = {"<current_ecc>Enabled<": "<current_ecc>Disabled<", "uncorrectable>0<": "uncorrectable>N/A<"}
    report = get_check("gpu_ecc").run(nodes_of(tmp_path, {"one": {"xml": smi_xml(changes={0: off})}}), CheckSettings())
    assert found_on(report, "one") == {"ecc_off": "CONFIGURE"}
    assert not report.unjudged


def test_gpus_without_nvlink_are_skipped_and_ones_without_fabric_are_not(tmp_path: Path) -> None:
    names = "GPU 0: NVIDIA L4 (UUID: GPU-1)\nGPU 1: NVIDIA L4 (UUID: GPU-2)\n"
    down = names.replace("L4 ", "H200 ")
    down = down.replace("\n", "\nNVML: Unable to retrieve NVLink information as all links are inActive\n")
    nvlink = get_check("gpu_nvlink")
    assert nvlink.run(nodes_of(tmp_path / "none", {"one": {"links": names}}), CheckSettings()).skip
    fleet = nodes_of(tmp_path / "down", {"one": {"links": down}})
    assert found_on(nvlink.run(fleet, CheckSettings()), "one") == {"nvlink_inactive": "RESET"}
    assert not nvlink.run(fleet, CheckSettings(options={"links": 0})).findings


INACTIVE = "NVML: Unable to retrieve NVLink information as all links are inActive"


@pytest.mark.parametrize("answer", ["NVML: Unable to retrieve NVLink information: Not Supported", "", INACTIVE])
@pytest.mark.parametrize(("model", "linked"), [
    ("NVIDIA H100 80GB HBM3", True), ("NVIDIA A100-SXM4-80GB", True), ("Tesla V100-SXM2-32GB", True),
    ("NVIDIA H200", True), ("NVIDIA B200", True), ("NVIDIA GB300", True), ("NVIDIA H20", True),
    ("NVIDIA H100 PCIe", False), ("NVIDIA H100 NVL", False), ("NVIDIA H200 NVL", False), ("NVIDIA L40S", False),
    ("NVIDIA A100 80GB PCIe", False), ("NVIDIA GH200 480GB", False), ("NVIDIA A100-PCIE-40GB", False),
    ("NVIDIA A30", False), ("NVIDIA GeForce RTX 3090", False),
])  # fmt: skip
def test_boards_that_link_their_gpus_are_not_skipped(tmp_path: Path, model: str, answer: str, *, linked: bool) -> None:
    """The driver's `Not Supported` hides links that are disabled; a card with a PCIe edge has none to miss."""
    links = "".join(f"GPU {gpu}: {model} (UUID: GPU-{gpu})\n{answer}\n" for gpu in range(2))
    nvlink, fleet = get_check("gpu_nvlink"), nodes_of(tmp_path, {"one": {"links": links}})
    report = nvlink.run(fleet, CheckSettings())
    assert (not report.skip, found_on(report, "one")) == (linked, {"nvlink_inactive": "RESET"} if linked else {})
    assert not nvlink.run(fleet, CheckSettings(options={"links": 0})).findings


def test_a_card_without_the_bridge_of_its_neighbours_is_found(tmp_path: Path) -> None:
    """Four cards of which two are joined; and a driver that prints nothing of cards that have no NVLink."""
    head = "GPU {}: NVIDIA A100-PCIE-40GB (UUID: GPU-{})\n"
    lone = head.format(1, 1) + INACTIVE + "\n"
    pairs = {host: "".join(head.format(gpu, gpu) + " Link 0: 25 GB/s\n" for gpu in range(2)) for host in "ab"}
    fleet = nodes_of(tmp_path / "bridges", {**{host: {"links": links} for host, links in pairs.items()},
                                            "c": {"links": pairs["a"].partition("GPU 1")[0] + lone}})  # fmt: skip
    assert found_on(get_check("gpu_nvlink").run(fleet, CheckSettings()), "c") == {"unlike_others": "CONFIGURE"}
    xml = smi_xml().replace("NVIDIA H100 80GB HBM3", "NVIDIA L40S").replace(FABRIC, "")
    fleet = nodes_of(tmp_path / "silent", {"one": {"xml": xml, "links": ""}, "two": {"links": ""}})
    assert found_on(get_check("gpu_nvlink").run(fleet, CheckSettings()), "two") == {"nvlink_inactive": "RESET"}
    fleet = nodes_of(tmp_path / "alone", {"one": {"xml": xml, "links": ""}})
    reason = get_check("gpu_nvlink").run(fleet, CheckSettings()).skip
    assert reason
    fleet = nodes_of(tmp_path / "beside", {"one": {"xml": xml, "links": ""}, "broken": {"code": 255}})
    report = get_check("gpu_nvlink").run(fleet, CheckSettings())
    assert set(report.unjudged) == {"broken"}
    assert report.skipped == {"one": reason}


RACK, ZEROS = "7f3a1c9e-0000-4c1b-9d7e-000000000001", "00000000-0000-0000-0000-000000000000"
FABRIC = "<fabric><state>Completed</state><status>Success</status></fabric>"


def fabric(uuid: str = RACK, clique: int = 32766, status: str = "Success", health: str = "Healthy") -> dict[str, str]:
    """Replace the fabric of a GPU by one that spans nodes."""
    tags = f"<state>Completed</state><status>{status}</status><cliqueId>{clique}</cliqueId>"
    tags += f"<clusterUuid>{uuid}</clusterUuid>"
    return {FABRIC: f"<fabric>{tags}<health><bandwidth>Full</bandwidth><summary>{health}</summary></health></fabric>"}


def imex(status: str = "UP", tray: str = "READY") -> str:
    """The answer of `nvidia-imex-ctl -N -j` of a domain with two trays."""
    nodes = {"0": {"status": "READY", "host": "10.0.0.1"}, "1": {"status": tray, "host": "10.0.0.2"}}
    return json.dumps({"nodes": nodes, "status": status})


Tray = tuple[Sequence[Mapping[str, str]], str | None]  # the fabric of each GPU, and the answer of IMEX
GOOD: Tray = ([fabric(), fabric()], imex())
TRAYS: dict[str, tuple[Tray, list[tuple[str, str]]]] = {
    "a good tray": (GOOD, []),
    "a board alone": (([fabric(ZEROS, 0)] * 2, None), [("", "fabric RESET")]),
    "no resources beside Completed": (
        ([fabric(), fabric(ZEROS, 0, "Insufficient Resources")], imex()),
        [("GPU 1", "fabric RESET"), ("GPU 0", "unlike_others CONFIGURE"), ("GPU 1", "unlike_others CONFIGURE")],
    ),
    "sick beside full bandwidth": (([fabric(), fabric(health="Unhealthy")], imex()), [("GPU 1", "fabric RESET")]),
    "degraded bandwidth": (
        ([fabric(), {FABRIC: fabric()[FABRIC].replace("Full", "Degraded")}], imex()), [("GPU 1", "fabric RESET")],
    ),
    "another partition": (([fabric(clique=3)] * 2, imex()), []),
    "another rack": (([fabric(RACK[:-1] + "2")] * 2, imex()), []),
    "no IMEX": (([fabric()] * 2, None), []),
    "IMEX is down": (([fabric()] * 2, imex("DOWN", "UNAVAILABLE")), [("nvidia-imex", "imex RESET")]),
    "IMEX lacks a tray": (([fabric()] * 2, imex("DEGRADED", "UNAVAILABLE")), [("nvidia-imex", "imex MONITOR")]),
    "IMEX cannot be asked": (([fabric()] * 2, ""), [("nvidia-imex", "imex MONITOR")]),
    "IMEX prints a list": (([fabric()] * 2, "[]"), [("nvidia-imex", "imex MONITOR")]),
}  # fmt: skip


@pytest.mark.parametrize("what", TRAYS)
def test_trays_of_a_rack_are_in_one_domain(tmp_path: Path, what: str) -> None:
    """Status counts beside state; partition 32766 is the usual one."""
    trays = {"one": GOOD, "two": GOOD, "this": TRAYS[what][0]}
    facts = {
        host: GpuFacts(
            smi=output(""), smi_file=str(tmp_path), nvlink=output(links_text()),
            imex=None if answer is None else output(answer),
            kernel_log=KernelLog(source=None, whole=False, lines=(), times=(), refused=()),
        )
        for host, (_, answer) in trays.items()
    }  # fmt: skip
    smi = {host: read_smi(smi_xml(changes=dict(enumerate(gpus)))) for host, (gpus, _) in trays.items()}
    nodes = GpuNodes(facts=facts, smi=smi, failed={}, silent={})
    report = GpuNvlink().report(nodes, SITE, NvlinkOptions())
    assert {finding.host for finding in report.findings} <= {"this"}
    assert [(each.subject, f"{each.kind} {each.severity}") for each in report.findings] == TRAYS[what][1]
    members = 2 if what.startswith(("a board", "another")) else 3
    gpus = 5 if what.startswith("no resources") else 2 * members  # a clique that lacks a GPU shows
    assert f"NVLink domain {RACK}, clique 32766: {members} nodes, {gpus} GPUs" in report.notes


def output(text: str) -> ToolOutput:
    return ToolOutput(command="", code=0, error=None, text=text)


def event(code: int, text: str = "", *, switch: bool = False) -> KernelEvent:
    return KernelEvent(switch=switch, code=code, bus="0000:10:00.0", text=text)


@pytest.mark.parametrize(("severity", "codes"), [
    (Severity.MONITOR, (13, 31, 43, 45, 63, 92, 94, 121)),
    (Severity.RESET, (48, 62, 64, 74, 95, 119, 120, 140, 143, 144, 150)), (Severity.REBOOT, (79,)),
    (Severity.ISOLATE, (54,)), (Severity.RESET, (0, 30, 999)),
])  # fmt: skip
def test_severities_follow_the_published_actions(severity: Severity, codes: tuple[int, ...]) -> None:
    assert {meaning(event(code))[0] for code in codes} == {severity}


@pytest.mark.parametrize(("wanted", "severity"), [
    ("None", "MONITOR"), ("GPU Reset Required", "RESET"), ("Node Reboot Required", "REBOOT"),
    ("Drain P2P", "RESET"), ("?", "RESET"),
])  # fmt: skip
def test_the_driver_says_itself_what_it_wants(wanted: str, severity: str) -> None:
    text = f"GPU recovery action changed from 0x2 (Node Reboot Required) to 0x1 ({wanted})"
    assert meaning(event(154, text))[0] == severity


def test_switches_say_whether_an_error_is_fatal() -> None:
    assert meaning(event(20034, "Fatal, Link 48", switch=True))[0] is Severity.RESET
    assert meaning(event(22013, "Non-fatal, Link 48", switch=True))[0] is Severity.MONITOR


@pytest.mark.parametrize("code", range(144, 151))
def test_errors_of_links_are_graded_by_the_drivers_word(code: int) -> None:
    """A nonfatal one comes thousands of times an hour while the link keeps running."""
    assert meaning(event(code, "RLW_RXPIPE Nonfatal XC0 i0 Link 13")).severity is Severity.MONITOR
    assert meaning(event(code, "NETIR_LINK_EVT Fatal XC0 i0 Link 00")).severity is Severity.RESET
    assert meaning(event(code)).severity is Severity.RESET
