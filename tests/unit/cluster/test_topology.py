"""Racks and switches as Slurm prints and writes them, and as a system's file has them."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.cluster.slurm.topology import expand_hosts, find_places, read_topology, read_topology_file
from pytest_llmbench.cluster.system import System
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.topology import Places
from pytest_llmbench.core.schema import validate

HOSTS = [f"n{number}" for number in range(8)]
LEAVES = {"leaf switch": {host: f"s{number // 2}" for number, host in enumerate(HOSTS)}}
SPINES = {"switch of level 1": {host: f"t{number // 4}" for number, host in enumerate(HOSTS)}}
ROOT = {"switch of level 2": dict.fromkeys(HOSTS, "root")}
TREE = {**LEAVES, **SPINES, **ROOT}
BLOCKS = {"block": {host: f"b{number // 4}" for number, host in enumerate(HOSTS)}}
# A printed text of tests/data/topology.
SCONTROL_TREE, CONF_TREE, SCONTROL_BLOCKS = (
    (Path(__file__).parents[2] / "data" / "topology" / f"{name}.txt").read_text("utf-8")
    for name in ("scontrol_tree", "conf_tree", "scontrol_blocks")
)
AGGREGATED = {"group of 2 blocks": dict.fromkeys(HOSTS, "b[0-1]")}
YAML: list[dict[str, Any]] = [
    {"topology": "flat", "flat": True},
    {"topology": "blocks", "block": {"block_sizes": [4], "blocks": [
        {"block": "b0", "nodes": "n[0-3]"}, {"block": "b1", "nodes": "n[4-7]"},
    ]}},
    {"topology": "tree", "cluster_default": True, "tree": {"switches": [
        {"switch": "root", "children": "t[0-1]"}, {"switch": "t0", "children": "s[0-1]"},
        {"switch": "t1", "children": "s[2-3]"}, {"switch": "s0", "nodes": "n[0-1]"},
        {"switch": "s1", "nodes": "n[2,3]"},
        {"switch": "s2", "nodes": "n4,n5"}, {"switch": "s3", "nodes": "n[6-7]"},
    ]}},
]  # fmt: skip


@pytest.mark.parametrize(("text", "levels"), [
    (SCONTROL_TREE, TREE), (CONF_TREE, TREE), (SCONTROL_BLOCKS, {**BLOCKS, **AGGREGATED}), ("", {}),
    ("No topology information available\n", {}), ("SwitchName=s0 Level=0 LinkSpeed=1 Nodes=", {"leaf switch": {}}),
])  # fmt: skip
def test_what_scontrol_and_the_file_say(text: str, levels: dict[str, dict[str, str]]) -> None:
    assert read_topology(text).levels == levels
    assert [*read_topology(text).levels] == [*levels], "inner levels come first"


def test_the_default_of_several_topologies_counts() -> None:
    assert read_topology_file(YAML).levels == TREE
    assert read_topology_file(YAML[:2]).levels == BLOCKS
    assert read_topology_file(YAML[:1]).levels == {}
    wrongs: list[Any] = [{"tree": {}}, None, [{"tree": []}, {"tree": ["s0"]}], [{"block": {"blocks": [{}]}}]]
    for wrong in wrongs:
        with pytest.raises(ConfigError, match="list of topologies"):
            read_topology_file(wrong)


def test_a_switch_below_itself_is_refused() -> None:
    with pytest.raises(ConfigError, match="below itself"):
        read_topology("SwitchName=top Switches=a\nSwitchName=a Switches=b\nSwitchName=b Switches=a")


@given(st.integers(0, 99), st.integers(0, 30), st.integers(1, 4))
def test_lists_of_nodes(first: int, more: int, width: int) -> None:
    numbers = [f"{number:0{width}d}" for number in range(first, first + more + 1)]
    text = f"login,r[1-2]n[{numbers[0]}-{numbers[-1]},x]".replace(",x", "")
    assert expand_hosts(text) == ["login", *(f"r{rack}n{number}" for rack in (1, 2) for number in numbers)]


@pytest.mark.parametrize("text", ["n[1-", "n]1", "n[a-b]", "n[5-3]", "n[1-999999999]", "r[1-9999]n[1-9999]"])
def test_what_is_no_list_of_nodes(text: str) -> None:
    with pytest.raises(ConfigError):
        expand_hosts(text)


def test_the_systems_file_has_them_or_names_the_file(tmp_path: Path) -> None:
    def never() -> str:
        raise AssertionError

    path = tmp_path / "topology.yaml"
    path.write_text(json.dumps(YAML), encoding="utf-8")
    assert find_places(str(path), never).levels == TREE
    (tmp_path / "topology.conf").write_text(CONF_TREE, encoding="utf-8")
    assert find_places(str(tmp_path / "topology.conf"), never).levels == TREE
    own = {"block": {"b0": "n[0-3]", "b1": "n[4-7]"}}
    assert find_places(own, never).levels == BLOCKS
    assert find_places(None, lambda: SCONTROL_TREE).levels == TREE
    with pytest.raises(ConfigError, match="No such file"):
        find_places(str(tmp_path / "none.conf"), never)
    assert validate(System, {"name": "a", "cluster": "slurm", "topology": own}, "").topology == own
    with pytest.raises(ConfigError, match="not a list of nodes"):
        validate(System, {"name": "a", "cluster": "slurm", "topology": {"rack": {"r0": "n[1-"}}}, "")


def test_levels_that_tell_nothing_of_these_nodes_are_left_out() -> None:
    places = Places(TREE)
    assert [*places.of(HOSTS).levels] == ["leaf switch", "switch of level 1"]
    assert [*places.of(HOSTS[:4]).levels] == ["leaf switch"]
    assert [*places.of(["n0", "n2", "n4"]).levels] == ["switch of level 1"], "each node behind its own leaf"
    some = places.of(["n0", "n1", "n5", "else"])
    outer = [some.boundary("n0", other) for other in ("n1", "n5", "else")]
    assert outer == ["", "switch of level 1", ""]
