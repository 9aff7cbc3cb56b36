"""A batch: every recipe on each group of nodes, groups side by side, and nothing left out in silence."""

from tests.conftest import UserFolder
from tests.slurm.conftest import Queue

SLURM = ("--cluster", "slurm")


def test_every_recipe_runs_on_every_group(user: UserFolder, queue: type[Queue]) -> None:
    """Groups are disjoint and busy at the same time; the node that is in none is named wherever one looks."""
    for name in ("one", "two"):
        user.recipe(name)
    user.test()
    result = user.run(*SLURM, "--nodes", "5", "--nodes-per-run", "2", "-n2", "-k", "one or two")
    assert result.returncode == 0, result.text
    records = {key: result.record(key) for key in ("one-group1", "one-group2", "two-group1", "two-group2")}
    assert set(result.cases) == {f"test_reference[{key}-learns]" for key in records}

    groups = [set(records[f"one-group{group}"]["hosts"]) for group in (1, 2)]
    assert [set(records[f"two-group{group}"]["hosts"]) for group in (1, 2)] == groups
    assert [len(group) for group in groups] == [2, 2]
    assert groups[0].isdisjoint(groups[1])
    first, second = (records[f"one-group{group}"]["timings"] for group in (1, 2))
    assert first["submitted"] < second["ended"]
    assert second["submitted"] < first["ended"]
    for group in (1, 2):  # one after the other on the same nodes
        one, two = (records[f"{name}-group{group}"]["timings"] for name in ("one", "two"))
        assert one["ended"] <= two["submitted"] or two["ended"] <= one["submitted"]

    left = result.suite["nodes_not_tested"]
    assert left
    assert left not in groups[0] | groups[1]
    assert f"NOT TESTED, too few nodes for another run: {left}" in result.text
    queue.wait_until_empty(result.session, 30)


def test_the_first_run_has_the_cluster_to_itself(user: UserFolder) -> None:
    """With `llmbench_first_run_alone` nothing else starts before it is over, and then all do.

    A recipe that cannot run at all is over before, and fills no cache.
    """
    user.recipe()
    user.recipe("odd", global_batch_size=7)
    user.test()
    nodes = ("--nodes", "3", "--nodes-per-run", "1")
    result = user.run(*SLURM, *nodes, "-o", "llmbench_first_run_alone=yes", "-n0", "-k", "tiny or odd")
    verdicts = {name: case.properties["verdict"] for name, case in result.cases.items()}
    assert verdicts == {
        f"test_reference[{name}-group{group}-learns]": verdict
        for name, verdict in (("tiny", "PASS"), ("odd", "ERROR"))
        for group in (1, 2, 3)
    }, result.text
    first, *others = (result.record(f"tiny-group{group}")["timings"] for group in (1, 2, 3))
    assert all(first["ended"] <= other["submitted"] for other in others)
    assert max(other["submitted"] for other in others) < min(other["ended"] for other in others)
    assert "nodes_not_tested" not in result.suite
    assert "NOT TESTED" not in result.text
