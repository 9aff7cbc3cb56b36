"""Leases: no two runs share a node, and every node comes back; the quarantine list; choices of runs."""

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.cluster.lease import Lease, LeasePool, TooFewLeftError
from pytest_llmbench.cluster.quarantine import add_to_quarantine, drain_command, read_quarantine, remove_bad
from pytest_llmbench.cluster.runs import ReplayChoices, RunChoices, RunSpec, Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.system import System
from pytest_llmbench.core.errors import ClusterError, ConfigError
from pytest_llmbench.core.recipe.recipes import Recipe
from tests.conftest import TINY

HOSTS = ("n1", "n2", "n3", "n4")


def test_a_run_waits_until_enough_nodes_are_free_and_more_than_there_are_is_an_error() -> None:
    pool = LeasePool(HOSTS)
    first = pool.acquire(3)
    assert first == ("n1", "n2", "n3")
    assert pool.acquire(2) is None
    assert pool.acquire(1) == ("n4",)
    pool.release(first)
    assert pool.acquire(2) == ("n1", "n2")
    with pytest.raises(ClusterError, match=r"needs 5 nodes; the allocation has 4 \(n1, n2, n3, n4\): give --nodes 5"):
        LeasePool(HOSTS).acquire(5)


def test_a_lost_node_is_lent_no_more() -> None:
    """A run that no longer fits is told which node is missing."""
    pool = LeasePool(HOSTS)
    lease = pool.acquire(2)
    assert lease == ("n1", "n2")
    pool.lose(("n2",))
    pool.release(lease)
    assert pool.acquire(3) == ("n1", "n3", "n4")
    with pytest.raises(
        TooFewLeftError, match=r"needs 4 nodes; the allocation has lost n2, and has 3 left \(n1, n3, n4\)"
    ):
        pool.acquire(4)
    with pytest.raises(ClusterError, match="the run needs 5 nodes; the allocation has 4"):
        pool.acquire(5)


def test_a_spare_node_joins_the_group_of_a_lost_one() -> None:
    """The other groups keep their nodes; without a spare one, the group is not whole any more."""
    pool = LeasePool((*HOSTS, "n5"))
    pool.lose(("n2",))
    assert pool.acquire_group(2, 2) == ("n3", "n4")
    first = pool.acquire_group(1, 2)
    assert first == ("n1", "n5")
    pool.lose(("n1",))
    pool.release(first)
    with pytest.raises(TooFewLeftError, match=r"group 1 \(n1, n5\) is not whole any more: the allocation has lost n1:"):
        pool.acquire_group(1, 2)


@given(st.lists(st.integers(min_value=-4, max_value=4).filter(bool), max_size=40))
def test_no_node_is_lent_twice_or_lost(moves: list[int]) -> None:
    pool = LeasePool(HOSTS)
    lent: list[Lease] = []
    for move in moves:
        if move > 0:
            lease = pool.acquire(move)
            if lease is not None:
                lent.append(lease)
        elif lent:
            pool.release(lent.pop(-move % len(lent)))
        out = [host for lease in lent for host in lease]
        assert len(out) == len(set(out))
        assert set(out) <= set(HOSTS)
    for lease in lent:
        pool.release(lease)
    assert pool.acquire(4) == HOSTS


NAMES = ("a", "a-group1", "a-group", "a-group2-group1", "b-repeat2", "group")
RECIPES = {name: Recipe.model_validate({**TINY, "name": name}) for name in NAMES}


def all_of(groups: int) -> dict[str, RunSpec]:
    if groups == 1:
        return {name: RunSpec(key=name, recipe=recipe) for name, recipe in RECIPES.items()}
    return {
        f"{name}-group{group}": RunSpec(key=f"{name}-group{group}", recipe=recipe, group=group)
        for name, recipe in RECIPES.items()
        for group in range(1, groups + 1)
    }


@pytest.mark.parametrize("groups", [1, 2, 3, 11])
def test_runs_are_those_that_were_made_at_once(groups: int) -> None:
    """Keys, order, number and runs are the same, whole and recipe by recipe."""
    choices, whole = RunChoices(RECIPES, groups), all_of(groups)
    assert list(choices) == list(whole)
    assert len(choices) == len(whole)
    assert dict(choices) == whole
    for name in (*NAMES, "unknown"):
        assert choices.of(name) == [spec for spec in whole.values() if spec.recipe.name == name]


@given(st.integers(1, 12), st.one_of(
    st.text(max_size=9),
    st.builds("{}-group{}".format, st.sampled_from(NAMES), st.text("0123456789x٣²-", max_size=11)),
))  # fmt: skip
def test_a_key_of_no_run_is_none(groups: int, key: str) -> None:
    choices, whole = RunChoices(RECIPES, groups), all_of(groups)
    assert (key in choices) == (key in whole)
    assert choices.get(key) == whole.get(key)


def test_replays_are_found_by_recipe() -> None:
    """The repeats of a run are those of its recipe; a recipe without logs has none."""
    first = RunSpec(key="a", recipe=RECIPES["a"])
    choices = ReplayChoices({"a": first, "a-repeat2": first.repeated(2)})
    assert choices.of("a") == [first, first.repeated(2)]
    assert choices.of("b-repeat2") == []
    assert (choices.names, choices["a-repeat2"].series) == (["a"], "a")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "bad.txt"
    assert add_to_quarantine(path, {"n5": "gpu_xid: Xid 79\non GPU 3"}, "one") == ["n5"]
    assert add_to_quarantine(path, {"n5": "again", "n6": "dcgm"}, "two") == ["n6"]
    found = read_quarantine(path)
    assert list(found) == ["n5", "n6"]
    assert found["n5"].endswith("one: gpu_xid: Xid 79 on GPU 3")


def test_people_may_edit_it(tmp_path: Path) -> None:
    """Comments, empty lines, a reason without a hash, no newline at the end."""
    path = tmp_path / "bad.txt"
    path.write_text("# head\n\nn1 broken fan\n  n2\nn3 # loud")
    assert read_quarantine(path) == {"n1": "broken fan", "n2": "no reason given", "n3": "loud"}
    add_to_quarantine(path, {"n4": "hot"}, "s")
    assert list(read_quarantine(path)) == ["n1", "n2", "n3", "n4"]


def test_sessions_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "bad.txt"
    threads = [threading.Thread(target=add_to_quarantine, args=(path, {f"n{i}": "x"}, f"s{i}")) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(read_quarantine(path)) == {f"n{i}" for i in range(8)}


def test_a_list_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_quarantine(tmp_path)
    assert read_quarantine(tmp_path / "none.txt") == {}


def settings(tmp_path: Path) -> Settings:
    return Settings(
        system=System(name="x", cluster="slurm"), cluster="slurm", allocation="session", run_dir=tmp_path,
        quarantine=tmp_path / "bad.txt",
    )  # fmt: skip


def test_commands_that_drain_nodes_are_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each bad node gets a command for an operator; llmbench itself runs none."""
    monkeypatch.setenv("PATH", "/nonexistent")  # without scontrol
    session, bad = Session(id="s", folder=tmp_path), {"n1": "limits: low", "n2": "limits: low"}
    lines = list(remove_bad(bad, settings(tmp_path), session))
    assert lines[0].startswith("in quarantine now")
    assert [line.startswith("to drain it: scontrol update nodename=n") for line in lines[1:]] == [True, True]
    assert list(remove_bad({}, settings(tmp_path), session)) == []


def test_the_reason_of_a_drain_fits_on_a_line() -> None:
    command = drain_command("n5", "limits: a\nb " + 300 * "c", "session")
    assert command[:4] == ["scontrol", "update", "nodename=n5", "state=drain"]
    assert command[4].startswith("reason=llmbench session: limits: a b ccc")
    assert len(command[4]) < 200
