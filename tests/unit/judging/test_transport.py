"""Rules about the way of the data: each fault is named with NCCL's line, and no healthy machine is."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.core.record.nccl import NcclLog
from pytest_llmbench.judging.transport import RULES, Wiring, add_variables, judge_transport, reasons, why_unseen
from tests.support.nccl import lines, read_nccl

SOCKET = {"hosts": ("n0", "n1"), "between": "NET/Socket/0"}
HOPPER = Wiring(
    gpus=4, nvlink=True, all_to_all=True, nvlink_version=4, nics=8, fast_ports=("mlx5_0", "mlx5_1"), near=True,
    virtual=False,
)  # fmt: skip
TWO = ("n0", "n1")
SLOW = replace(HOPPER, shares={"all_reduce": 0.3})
ETHERNET = replace(HOPPER, nics=None, fast_ports=())
EIGHT = replace(HOPPER, gpus=8)
RACK = replace(HOPPER, nvlink_version=5, nics=None, rack=8, nodes=2, domains=1)
PCIE = Wiring(gpus=4, nvlink=False, all_to_all=False, near=False)
ON = {"nvls": "yes", "nvls_channels": 16, "algorithm": "NVLS"}
TRAYS = {"hosts": TWO, "inside": "P2P/MNNVL", "between": "P2P/MNNVL", "nodes": 1, "mnnvl": 1, **ON}
SHM = {"inside": "SHM/direct/direct", "between": "SHM/direct/direct"}

HEALTHY: dict[str, tuple[Wiring, dict[str, Any]]] = {
    "H100 node with NVLS": (EIGHT, {"gpus": 8, **ON}),
    "four H200, NVLS not offered in a VM": (replace(HOPPER, virtual=True), {}),
    "two nodes over InfiniBand": (HOPPER, {"hosts": TWO}),
    "PXN and shared buffers": (HOPPER, {"hosts": TWO, "between": "NET/IB/0(3)/GDRDMA/Shared/flush=None"}),
    "EFA": (
        replace(HOPPER, nics=4),
        {
            "hosts": TWO, "between": "NET/Libfabric/0/GDRDMA", "nics_of": 0,
            "more": ("NET/OFI Selected provider is efa, fabric is efa-direct (found 4 nics)",),
        },
    ),
    "TCPXO": (ETHERNET, {"hosts": TWO, "between": "NET/FasTrak/0/GDRDMA", "nics_of": 0}),
    "TCP where nothing else is there": (ETHERNET, SOCKET),
    "NIC behind the processor": (replace(HOPPER, near=False), {"hosts": TWO, "between": "NET/IB/0"}),
    "rack of NVL72": (RACK, TRAYS),
    "A100 without NVLS": (replace(HOPPER, nvlink_version=3), {}),
    "unknown machine": (Wiring(), {"hosts": TWO, "nics_of": 4}),
    "more NICs than counted": (HOPPER, {"hosts": TWO, "nics_of": 12}),
    "two nodes that NCCL_HOSTID makes of one": (
        ETHERNET, {"between": "NET/Socket/0", "nodes": 2, "inside": "NET/Socket/0"}
    ),
    "harmless variables": (
        HOPPER,
        {"more": ("NCCL_IB_HCA set to mlx5", "NCCL_PROTO set by environment to Simple.",
                  "NCCL_ALGO set by environment to Ring,Tree.", "NCCL_BUFFSIZE set by environment to 8388608.",
                  "NCCL_IB_DISABLE set by environment to 0.",
                  "NCCL_P2P_LEVEL set by environment to NVL", "NCCL_PROTO set by environment to ^LL128.")},
    ),
}  # fmt: skip
# The wiring, the lines, and the finding: its kind, its level, and words of its message.
FAULTY: dict[str, tuple[Wiring, dict[str, Any], str, str, str]] = {
    "TCP beside InfiniBand": (HOPPER, SOCKET, "over_tcp", "fail", "mlx5_0, mlx5_1"),
    "TCP by an environment": (
        HOPPER, {**SOCKET, "more": ("NCCL_IB_DISABLE set by environment to 1.",)},
        "over_tcp", "fail", "NCCL_IB_DISABLE=1 is set",
    ),
    "EFA's plugin fell back": (
        replace(HOPPER, fast_ports=()),
        {**SOCKET, "more": ("NET/OFI Only EFA provider is supported",)},
        "over_tcp", "fail", "fell back",
    ),
    "P2P off": (
        HOPPER, {**SHM, "more": ("NCCL_P2P_DISABLE set by environment to 1",)},
        "no_p2p", "fail", "NCCL_P2P_DISABLE=1 is set",
    ),
    "P2P off, an old NCCL": (HOPPER, {"inside": "direct shared memory"}, "no_p2p", "fail", "host memory"),
    "P2P off, NCCL 2.30": (HOPPER, {"inside": "SHM/direct"}, "no_p2p", "fail", "host memory"),
    "P2P and SHM off": (HOPPER, {"inside": "NET/Socket/0", "between": "NET/Socket/0"}, "no_p2p", "fail", "the network"),
    "SHM on a board of PCIe": (PCIE, {"inside": "SHM/direct"}, "no_p2p", "warn", "normal on many boards"),
    "SHM on an unknown machine": (Wiring(), {"inside": "SHM/direct"}, "no_p2p", "warn", "host memory"),
    "no GDR": (HOPPER, {"hosts": TWO, "between": "NET/IB/0"}, "no_gdr", "warn", "GDRDMA"),
    "no GDR, and slow": (
        SLOW, {"hosts": TWO, "between": "NET/IB/0"}, "no_gdr", "fail", "GDRDMA"
    ),
    "a lost NIC": (HOPPER, {"hosts": TWO, "nics_of": 7}, "lost_nics", "fail", "7 of the 8"),
    "one NIC of eight": (
        HOPPER, {"hosts": TWO, "nics_of": 1, "more": ("NCCL_IB_HCA set to mlx5_0",)},
        "lost_nics", "fail", "NCCL_IB_HCA=mlx5_0",
    ),
    "EFA lost one": (
        replace(HOPPER, nics=4), {"nics_of": 0, "more": ("NET/OFI Selected Provider is efa (found 3 nics)",)},
        "lost_nics", "fail", "3 of the 4",
    ),
    "NVLS unused": (EIGHT, {"gpus": 8, "nvls": "yes"}, "nvls_off", "warn", "no channel uses it"),
    "NVLS unused, and slow": (
        replace(EIGHT, shares={"all_reduce": 0.77}), {"gpus": 8, "nvls": "yes"}, "nvls_off", "fail", "no channel"
    ),
    "ring in place of NVLS": (
        EIGHT, {"gpus": 8, **ON, "algorithm": "RING", "more": ("NCCL_ALGO set by environment to Ring.",)},
        "nvls_off", "warn", "NCCL_ALGO=Ring is set",
    ),
    "NVLS switched off": (
        EIGHT, {"gpus": 8, "nvls": "", "more": ("NCCL_NVLS_ENABLE set by environment to 0.",)},
        "nvls_off", "warn", "NCCL_NVLS_ENABLE=0 is set",
    ),
    "no NVLS on metal": (EIGHT, {"gpus": 8}, "nvls_off", "warn", "Fabric Manager"),
    "MNNVL off": (RACK, {"hosts": TWO, **ON}, "mnnvl_off", "fail", "MNNVL 0, 2 domains for 1"),
    "IMEX down": (
        RACK, {**TRAYS, "more": ("MNNVL (cliqueSize 8) is available but not working on this system. Check the IMEX",)},
        "mnnvl_off", "fail", "does not work",
    ),
    "TCP on an unknown machine": (Wiring(), SOCKET, "over_tcp", "warn", "over TCP"),
    "one core": (replace(HOPPER, cores=1), {}, "few_cores", "warn", "all 4 ranks of a node run on 1 core"),
    "a small clique": (
        RACK, {**TRAYS,
               "more": ("MNNVL 1 cliqueId 7ffe cliqueSize 4 cliqueRank 0",)},
        "mnnvl_off", "fail", "a clique of 4",
    ),
    **{
        variable: (
            HOPPER, {"more": (f"{variable.replace('=', ' set by environment to ')}.",)},
            "slow_setting", "warn", variable,
        )
        for variable in (
            "NCCL_MAX_NCHANNELS=1", "NCCL_PROTO=LL", "NCCL_PROTO=^Simple", "NCCL_BUFFSIZE=65536", "NCCL_NTHREADS=64",
            "NCCL_ALGO=Tree", "NCCL_ALGO=allreduce:tree", "NCCL_SHM_DISABLE=1", "NCCL_P2P_LEVEL=LOC",
        )
    },
}  # fmt: skip


def judge(wiring: Wiring, how: dict[str, Any]) -> list[Any]:
    how = dict(how)
    without = how.get("nvls") == ""
    text = lines(**{**how, **({"nvls": "yes"} if without else {})})
    logs = read_nccl(line for line in text if not (without and "multicast" in line))
    assert not any(log.unread for log in logs.values())
    assert all(why_unseen(log) is None for log in logs.values())
    return list(judge_transport(logs, dict.fromkeys(logs, wiring)))


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_machine_is_not_accused(name: str) -> None:
    assert judge(*HEALTHY[name]) == []


@pytest.mark.parametrize("name", FAULTY)
def test_each_fault_is_named_with_its_line_and_its_cure(name: str) -> None:
    wiring, how, kind, level, words = FAULTY[name]
    found = [one for one in judge(wiring, how) if one.kind != "slow_setting" or kind == "slow_setting"]
    assert [(one.kind, one.level) for one in found] == [(kind, level)]
    assert words in found[0].text
    assert "NCCL INFO" in found[0].line or kind == "few_cores"
    assert found[0].cure == RULES[found[0].kind][1]
    assert found[0].text.count("NCCL_P2P_DISABLE") <= 1
    assert found[0].hosts == tuple(how.get("hosts", ("n0",)))


def test_one_node_of_many_is_named() -> None:
    text = [
        line.replace("P2P/CUMEM", "SHM/direct") if line.startswith("n1") else line
        for line in lines(hosts=("n0", "n1", "n2"))
    ]
    logs = read_nccl(text)
    assert [one.hosts for one in judge_transport(logs, dict.fromkeys(logs, HOPPER))] == [("n1",)]


def test_variables_of_ranks_count_although_nccl_does_not_print_them() -> None:
    log = add_variables(read_nccl(lines())["n0"], {"NCCL_PROTO": "LL", "NCCL_IB_HCA": "mlx5_0"})
    found = judge_transport({"n0": log}, {"n0": HOPPER})
    assert reasons(found) == "NCCL_PROTO=LL: the protocol is chosen by hand"
    assert found[0].line == "NCCL_PROTO=LL in the environment of the ranks"


@pytest.mark.parametrize(
    ("text", "words"),
    [([], "printed no line"), (["n0:1:1 [0] NCCL INFO Using network IB"], "1 lines of NCCL name no channel"),
     (["NCCL INFO Channel 00/0 : 0[0] -> 1[1] via SHM/direct"], "1 cannot be read")],
)  # fmt: skip
def test_a_way_that_was_not_seen_is_said(text: list[str], words: str) -> None:
    logs = read_nccl(text)
    assert words in (why_unseen(next(iter(logs.values()), NcclLog())) or "")


@pytest.mark.parametrize(("name", "way", "channels", "kinds"), [
    ("p2p_off", "SHM", "4", ["no_p2p"]), ("one_channel", "P2P/CUMEM", "1", ["slow_setting"]),
    ("train", "P2P/CUMEM", "24", []),
])  # fmt: skip
def test_lines_of_real_h200(name: str, way: str, channels: str, kinds: list[str]) -> None:
    """NCCL 2.28.9 on four H200; the lines of NVLS are absent, as this machine's environment has it off."""
    path = Path(__file__).parents[2] / "data" / "nccl" / f"{name}.log"
    logs = read_nccl(path.read_text().splitlines())
    assert (logs["vm"].transports, logs["vm"].unread) == ({way: 1}, 0)
    assert logs["vm"].facts["coll_channels"].value == channels
    assert [one.kind for one in judge_transport(logs, {"vm": replace(HOPPER, nics=None, fast_ports=())})] == kinds
