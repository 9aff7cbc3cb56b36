"""NCCL's lines: every form of its versions, and nothing that is damaged passes for what it is not."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.record.nccl import NcclLog
from pytest_llmbench.readers.nccl import condense, find_faults, read_nccl
from tests.support.nccl import lines

HEAD = "gpu-01:3884652:3884701 [4] NCCL INFO "
# The way of a channel in all words of NCCL 2.7 to 2.30, as the reader names it.
WAYS = {
    "0[6000] -> 1[7000] via P2P/direct pointer": "P2P/direct pointer",
    "1[1] -> 3[3] via P2P/direct pointer/read": "P2P/direct pointer/read",
    "0[0] -> 15[7] via P2P/IPC/read": "P2P/IPC/read",
    "0[0] -> 1[1] via P2P/IPC comm 0x7f12 nRanks 08": "P2P/IPC",
    "0[0] -> 1[1] via P2P/IPC/CE": "P2P/IPC",
    "0[0] -> 7[7] via P2P/CUMEM": "P2P/CUMEM",
    "0[0] -> 7[7] via P2P/CUMEM/read": "P2P/CUMEM/read",
    "0[0] -> 4[0] via P2P/MNNVL": "P2P/MNNVL",
    "0[0] -> 3[3] via P2P/indirect/1[1]": "P2P/indirect/1[1]",
    "0[0] -> 1[1] via direct shared memory": "SHM",
    "0[0] -> 1[1] via SHM/direct/direct": "SHM",
    "0[0] -> 1[1] via SHM/CE/direct": "SHM",
    "0[0] -> 1[1] via SHM/direct": "SHM",
    "2[c7000] -> 0[87000] [receive] via NET/IB/5/GDRDMA": "NET/IB/GDRDMA",
    "31[7] -> 39[7] [receive] via NET/IBext_v8/2": "NET/IBext_v8",
    "15[7] -> 6[6] [send] via NET/Socket/3": "NET/Socket",
    "8[0] -> 16[0] [send] via NET/AWS Libfabric/0/GDRDMA": "NET/AWS Libfabric/GDRDMA",
    "8[0] -> 16[0] [send] via NET/Libfabric/0(9)/GDRDMA/Shared": "NET/Libfabric/GDRDMA",
    "8[0] -> 16[0] [send] via NET/IB/0/GDRDMA(PCI)": "NET/IB/GDRDMA",
    "8[0] -> 16[0] [send] via NET/GPUDirectTCPX_v7/0/GDRDMA/flush=None": "NET/GPUDirectTCPX_v7/GDRDMA",
}
FACTS = {
    "NET/IB : No device found.": ("no_ib", "NET/IB : No device found."),
    "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB/SHARP [RO]; OOB ib0:10.0.0.1<0>": ("nics", "2"),
    "NET/IB : Using [0]rdma0:1/RoCE:0:0 [1]rdma1:1/RoCE:1:0 [2]rdma2:1/RoCE:2:0 [RO]; OOB e0:1<0>": ("nics", "3"),
    "NET/IB : Using [0]={[0]mlx5_0:1/IB, [1]mlx5_1:1/IB} [RO]; OOB e0:1<0>": ("nics", "2"),
    "NET/OFI Selected Provider is efa (found 16 nics)": ("nics", "16"),
    "NET/OFI Selected provider is efa, fabric is efa-direct (found 32 nics)": ("nics", "32"),
    "NVLS multicast support is not available on dev 7": ("nvls", "no"),
    "NVLS multicast support is available on dev 7 (NVLS_NCHANNELS 16)": ("nvls", "yes"),
    "24 coll channels, 0 collnet channels, 16 nvls channels, 32 p2p channels, 2 p2p channels per peer": (
        "nvls_channels", "16"
    ),
    "8 coll channels, 8 p2p channels, 2 p2p channels per peer": ("coll_channels", "8"),
    "MNNVL 1 cliqueId 7ffe cliqueSize 72 cliqueRank 3": ("clique", "72"),
    "GPU Direct RDMA Disabled for GPU 3 / HCA 1 (distance 8 > 5)": (
        "no_gdr", "GPU Direct RDMA Disabled for GPU 3 / HCA 1 (distance 8 > 5)"
    ),
    "P2P is disabled between connected GPUs 0 and 1. You can repress this message": (
        "no_p2p", "P2P is disabled between connected GPUs 0 and 1. You can repress this message"
    ),
}  # fmt: skip
# Lines of NCCL without a fact that is used; two of them begin as others do.
OTHERS = (
    "Bootstrap : Using eth0:10.0.0.1<0>", "Using network IB", "Channel 00/24 :    0   1   2   3",
    "Ring 00 : 3 -> 0 -> 1",
    "Connected all rings, use ring PXN 0 GDR 1", "P2P Chunksize set to 131072", "NVLS comm 0x55d0 headRank 0 nHeads 8",
    "ncclCommSplit comm 0x1 rank 3 parent 0x2 nranks 8", "=== System : maxBw 370.8 totalBw 370.8 ===",
    "DMA-BUF is available on GPU device 0", "NET/Plugin: Loaded net plugin Libfabric (v10)",
    "MNNVL busId 0x1 fabric UUID 1.2", "Trees [0] 1/-1/-1->0->3",
)  # fmt: skip


def one(text: str) -> NcclLog:
    return read_nccl([f"{HEAD}{text}\n"])["gpu-01"]


@pytest.mark.parametrize("text", WAYS)
def test_every_way_of_a_channel(text: str) -> None:
    log = one(f"Channel 03/0 : {text}")
    assert (log.transports, log.unread, log.lines) == ({WAYS[text]: 1}, 0, 1)


@pytest.mark.parametrize("text", FACTS)
def test_every_fact(text: str) -> None:
    log = one(text)
    name, value = FACTS[text]
    assert (log.facts[name].value, log.facts[name].line, log.unread) == (value, HEAD + text, 0)


def test_all_else() -> None:
    log = read_nccl(HEAD + text for text in OTHERS)["gpu-01"]
    assert (log.lines, log.unread, log.links, dict(log.facts)) == (len(OTHERS), 0, (), {})
    for text, value in (
        ("AllReduce: 8589934592 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15}", "NVLS/SIMPLE"),
        ("805306368 Bytes -> Algo 1 proto 2 time 3970.683594", "RING/SIMPLE"),
    ):
        assert [fact.value for fact in one(text).algorithms.values()] == [value]
    assert one("NCCL_IB_HCA set to mlx5_2:1,mlx5_0:1").variables["NCCL_IB_HCA"].value == "mlx5_2:1,mlx5_0:1"
    assert one("NCCL_P2P_DISABLE set by environment to 1.").variables["NCCL_P2P_DISABLE"].value == "1"
    warned = read_nccl(
        ["[2026-01-01 12:00:00] n:1:2 [0] init.cc:99 NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast"]
    )
    assert (len(warned["n"].warnings), set(warned["n"].facts)) == (1, {"no_nvls"})


def test_the_largest_message_names_the_algorithm() -> None:
    sizes = {8: "TREE proto LL", 99: "RING proto SIMPLE", 9: "TREE proto LL"}
    log = read_nccl(f"{HEAD}AllReduce: {size} Bytes -> Algo {words}" for size, words in sizes.items())["gpu-01"]
    assert log.algorithms["AllReduce"].value == "RING/SIMPLE"


@pytest.mark.parametrize(
    "text",
    [
        "Channel 00/0 : 0[0] -> 1[1] via", "Channel 00/0 : 0[0] -> 1[1] via SH",
        "Channel 00/0 : 0[0] -> 1[1] via NET/Sock", "Channel 00/0 : 0[0] -> 1[1] via XYZ/4",
        "Channel 00/0 : 0[0] -", "NVLS multicast supp", "CollNet 0/0 : 3 via",
    ],
)  # fmt: skip
def test_a_damaged_line_is_counted(text: str) -> None:
    log = one(text)
    assert (log.unread, log.unread_line, log.links, dict(log.facts)) == (1, HEAD + text, (), {})


def test_two_lines_in_one_and_a_line_without_its_head() -> None:
    ring = "Channel 00/0 : 0[0] -> 1[1] via SHM/direct"
    log = read_nccl(
        [f"0: {HEAD}{ring} {HEAD}{ring.replace('0[0] -> 1[1]', '1[1] -> 0[0]')}", f":12 [4] NCCL INFO {ring}"]
    )["gpu-01"]
    assert (len(log.links), log.lines, log.unread) == (2, 3, 1)


def test_forms_of_public_logs() -> None:
    """What launchers and other programs put around NCCL's words, in logs of its issues 1713 and 1453 and of Ray."""
    ring = "NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"
    seen = "[repeated 7x across cluster] (Ray deduplicates logs by default.)\x1b[0m"
    log = read_nccl([
        f"n0:7:8 [0] {ring}", f"[1,0]<stdout>:  16777216  float  none  -1n0:7:9 [0] {ring.replace('00/', '1/')}",
        f"n0:7:8 [0] {ring}n0:9:10 [1] {ring.replace('0[0] -> 1[1]', '1[1] -> 0[0]')}",
        f"\x1b[36m(W pid=7)\x1b[0m n0:7:8 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.\x1b[32m {seen}",
        "n0:7:8 [0] NCCL INFO NET/IB: GPU Direct RDMA Disabled for HCA 0 'mlx5_0'",
        "n0:7:8 [0] NCCL INFO NET/IB : Using [0]={[0] mlx5_0:1/IB/, [1] mlx5_1:1/IB/} [RO]; OOB eth0:1<0>",
    ])  # fmt: skip
    assert list(log) == ["n0"]
    assert (log["n0"].transports, log["n0"].unread) == ({"P2P/CUMEM": 2}, 0)
    assert log["n0"].variables["NCCL_IB_DISABLE"].value == "1"
    assert (log["n0"].facts["nics"].value, "no_gdr" in log["n0"].facts) == ("2", True)
    both = [f"node7:1:1 [0] {ring}", f"supernode7:2:2 [0] {ring}"]
    assert list(read_nccl(both)) == ["node7", "supernode7"]


# Lines of healthy machines in public logs, and of none a fault: the words of NCCL 2.4 to 2.30 that no rule may take.
PUBLIC = (
    "NET/FastSocket : Using [0]ibs108:10.0.19.12<0> [1]ibs109:10.0.19.13<0>",  # GCP's plugin
    "NET/IB : Using [0]mlx5_bond_6:1/RoCE [1]mlx5_bond_7:1/RoCE [RO]; OOB bond0:30.159.184.22<0>",
    "Using network NCCL RDMA Plugin v6", "NET/Socket : GPU Direct RDMA Disabled for HCA 0 'lo'",  # nccl 1053
    "Channel 00/0 : 0[0] -> 8[0] [send] via NET/NCCL RDMA Plugin v6/0/GDRDMA",
    "Channel 05/1 : 3[1] -> 8[0] [send] via NET/IB/12/GDRDMA/Shared",  # nccl 1713
    "NET/Plugin : Plugin load (libnccl-net.so) returned 2 : libnccl-net.so: cannot open shared object file",  # 1232
    "NET/Plugin: Failed to find ncclCollNetPlugin_v9 symbol.", "[Proxy Progress] Device 0 CPU core 184",
    "TOPO/NET : Made vNic 0", "NET/IB : Made virtual device [8] name=mlx5_0+mlx5_1 speed=800000 ndevs=2",
    "MNNVL busId 0x1801000 fabric UUID f8a1.3a cliqueId 0x7ffe state 3 healthMask 0xaa",
    "Could not get speed from /sys/class/net/lo/speed. Defaulting to 10 Gbps.", "+ PCI[0.2] - PCI/0-65000 (104c8)",
    "comm 0x43dc13b0 rank 0 nranks 3 cudaDev 0 busId 80 - Abort COMPLETE", "=== System : maxBw 48.0 totalBw 370.8 ===",
    "Call to ibv_set_ece failed with error Operation not supported errno 95", "0 : GPU/0 GPU/1",
    "Tree 0 : 0 -> 1 -> -1/-1/-1", "threadThresholds 8/8/64 | 24/8/64 | 512 | 512",
    "NCCL_WORK_FIFO_DEPTH set by environment to 4194304.", "NCCL_P2P_LEVEL set by environment to SYS (5)",
    "NCCL_SOCKET_IFNAME set by environment to en,eth,em,bond", "NCCL_ALGO set by environment to NVLSTREE",
)  # fmt: skip


def test_healthy_lines_of_public_logs_are_no_fault(tmp_path: Path) -> None:
    log = read_nccl(HEAD + text for text in PUBLIC)["gpu-01"]
    assert (log.lines, log.unread) == (len(PUBLIC), 0)
    (tmp_path / "log").write_text("\n".join(HEAD + text for text in PUBLIC), encoding="utf-8")
    assert find_faults([tmp_path / "log"]) == ()


def test_ranks_of_a_node_are_told_from_those_of_others() -> None:
    """By the lines of communicators; a host that variables divide is left open, and NVL72 joins hosts."""

    def within(**how: object) -> set[tuple[str, bool | None]]:
        logs = read_nccl(lines(("a", "b"), 2, **how)).values()  # type: ignore[arg-type]
        return {(link.kind, link.within) for log in logs for link in log.links}

    assert within() == {("P2P", True), ("NET", False)}
    assert within(nodes=1) == {("P2P", True), ("NET", True)}
    assert within(nodes=4) == {("P2P", None), ("NET", None)}


def test_condensed_lines_say_the_same() -> None:
    text = lines(
        ("a", "b"), 8, inside="SHM/direct", more=("NCCL_PROTO set by environment to LL.", "Channel 0/0 : 0[0] ->")
    )
    kept = condense([*text, "noise"] * 3, 1000)
    assert len(kept) < len(text)
    for host, log in read_nccl(text).items():
        again = read_nccl(kept)[host]
        assert (again.transports, again.facts, again.variables, again.nodes, again.comms) == (
            log.transports,
            log.facts,
            log.variables,
            log.nodes,
            log.comms,
        )
        assert again.unread


@given(
    st.lists(
        st.one_of(st.text(max_size=80), st.sampled_from([*WAYS, *FACTS, *OTHERS]).map(lambda text: HEAD + text)),
        max_size=8,
    )
)
def test_any_text_is_read(text: list[str]) -> None:
    for log in read_nccl(text).values():
        assert log.unread <= log.lines
        log.summary()


@given(st.data())
def test_damage_hides_no_fault(data: st.DataObject) -> None:
    """A line of host memory that lost a piece is still one, or is counted as unread, or has lost NCCL's name itself."""
    line = f"{HEAD}Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct"
    start = data.draw(st.integers(0, len(line) - 1))
    damaged = line[:start] + line[start + data.draw(st.integers(1, 12)) :]
    logs = list(read_nccl([damaged]).values())
    links = [link for log in logs for link in log.links]
    named = "NCCL INFO" in damaged and "Channel " in damaged
    assert all(link.kind == "SHM" for link in links)
    assert links or any(log.unread for log in logs) or not named


def test_logs_of_trainings_name_the_fault(tmp_path: Path) -> None:
    """Behind the prefixes of launchers, and between the lines of a framework."""
    log = tmp_path / "output.log"
    text = lines(("a", "b"), 2, between="NET/Socket/0", more=("NCCL_IB_DISABLE set by environment to 1.",))
    log.write_text("".join(f"3: [default0]:{line}\n iteration 1/ 9 | loss: 3.0 |\n" for line in text))
    (tcp,) = find_faults([log, tmp_path / "absent"])
    assert tcp.startswith("data between nodes went over TCP (NET/Socket); NCCL_IB_DISABLE=1 is set; by `a:101:101 [1]")
    log.write_text("\n".join(lines()))
    assert find_faults([log]) == ()
