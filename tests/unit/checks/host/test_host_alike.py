"""Who stands out among nodes that should be alike, and which devices a variable names."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.checks.host.base import find_differing, has_one_clock, is_network, name_sizes
from pytest_llmbench.checks.host.environment import RULES, choose_devices
from tests.support.fleet import mount_of_kind

VALUES = st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.sampled_from(["1", "2", "3"]), max_size=12)
DEVICES = st.sets(st.from_regex(r"[a-z]{1,3}[0-9]{0,2}", fullmatch=True), max_size=6)


@given(VALUES)
def test_all_stand_out_who_do_not_have_what_most_have(values: dict[str, str]) -> None:
    ranked = Counter(values.values()).most_common()
    found = find_differing(values)
    if len(ranked) < 2:
        assert not found
    elif ranked[0][1] > ranked[1][1]:
        assert found.keys() == {host for host, value in values.items() if value != ranked[0][0]}
    else:
        assert found.keys() == values.keys()
        assert all(value in words for words in found.values() for value, _ in ranked)


def test_both_values_and_who_agrees_are_named() -> None:
    usual = {f"n{number}": "5.15" for number in range(9)}
    assert find_differing({**usual, "x": "5.14"}) == {"x": "5.14; 5.15 on n0, n1, n2, n3 and 5 more"}
    assert find_differing({"a": "1", "b": "2"})["a"] == "1; the nodes are divided: 1 on a; 2 on b"


@given(st.dictionaries(st.text(max_size=3), st.integers(1, 2**45)), st.floats(0, 0.5))
def test_sizes_of_one_name_are_close(sizes: dict[str, int], tolerance: float) -> None:
    """No group is wider than the tolerance, up to the digits of its name."""
    named = name_sizes(sizes, tolerance)
    assert named.keys() == sizes.keys()
    for name in set(named.values()):
        group = [sizes[host] for host in sizes if named[host] == name]
        # Two groups may have one name where they are the same to the last digit that is written.
        assert max(group) <= min(group) * (1 + tolerance) + 2**30 / 50


@given(DEVICES, st.sampled_from(sorted(RULES)), st.sampled_from(["", "^", "=", "^="]), DEVICES)
def test_a_list_and_the_list_that_leaves_it_out_part_the_devices(
    there: set[str], name: str, before: str, named: set[str]
) -> None:
    rule, listed = RULES[name], ",".join(sorted(named))
    devices, absent = choose_devices(before + listed, there, rule)
    assert devices <= there
    if before.startswith("^"):
        assert devices == there - choose_devices(before[1:] + listed, there, rule)[0]
        assert not absent
    else:
        assert set(absent) <= named - there


def test_names_of_file_systems() -> None:
    assert is_network(mount_of_kind("nfs4"))
    assert is_network(mount_of_kind("fuse.juicefs"))
    assert not is_network(mount_of_kind("fuse.fuse-overlayfs"))
    assert not is_network(None)
    assert has_one_clock(mount_of_kind("nfs"))
    assert has_one_clock(mount_of_kind("xfs"))
    assert not has_one_clock(mount_of_kind("lustre"))
    assert not has_one_clock(mount_of_kind("new"))
