"""NCCL's lines: every form of its versions, and nothing that is damaged passes for what it is not."""

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.record.nccl import NcclLog
from pytest_llmbench.readers.nccl import condense, find_faults
from tests.support.nccl import lines, read_nccl

HEAD = "gpu-01:3884652:3884701 [4] NCCL INFO "
_DATA = Path(__file__).parents[2] / "data" / "nccl"  # its README has what each of them is
WAYS = dict(csv.reader((_DATA / "ways.csv").read_text("utf-8").splitlines()))
FACTS = {text: (name, value) for text, name, value in csv.reader((_DATA / "facts.csv").read_text("utf-8").splitlines())}
OTHERS, PUBLIC = ((_DATA / f"{name}.txt").read_text("utf-8").splitlines() for name in ("others", "healthy"))


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


@pytest.mark.parametrize("text", [
    "Channel 00/0 : 0[0] -> 1[1] via", "Channel 00/0 : 0[0] -> 1[1] via SH",
    "Channel 00/0 : 0[0] -> 1[1] via NET/Sock", "Channel 00/0 : 0[0] -> 1[1] via XYZ/4",
    "Channel 00/0 : 0[0] -", "NVLS multicast supp", "CollNet 0/0 : 3 via",
])  # fmt: skip
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
            log.transports, log.facts, log.variables, log.nodes, log.comms,
        )  # fmt: skip
        assert again.unread


@given(st.lists(
    st.one_of(st.text(max_size=80), st.sampled_from([*WAYS, *FACTS, *OTHERS]).map(lambda text: HEAD + text)),
    max_size=8,
))  # fmt: skip
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
