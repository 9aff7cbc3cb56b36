"""Today's recipe decides what had to run: whatever field of the recipe in a record differs is named."""

import json
from typing import Any

import pytest

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.session import law
from pytest_llmbench.session.law import Law, flatten, recipe_differences
from tests.support.recorded import REAL

RECORD = RunRecord.read(REAL)
PLAIN: dict[str, Any] = json.loads(RECORD.recipe.model_dump_json())


def test_every_field_of_a_recipe_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a rule over all fields, so that one that comes later is compared as well."""
    fields = {*flatten(PLAIN), *(name for name in Recipe.model_fields if not isinstance(PLAIN[name], dict))}
    excused = {name for name in fields if name.partition(".")[0] in law.MAY_DIFFER}
    assert len(fields) > 40
    assert {name.partition(".")[0] for name in excused} == law.MAY_DIFFER.keys()
    for name in sorted(fields - excused):
        changed = json.loads(json.dumps(PLAIN))
        part, last = changed, name.split(".")
        for step in last[:-1]:
            part = part[step]
        part[last[-1]] = "another"
        pair = iter((changed, PLAIN))
        monkeypatch.setattr(law, "_with_defaults", lambda _, pair=pair: next(pair))
        assert [*recipe_differences(RECORD.recipe, RECORD.recipe)] == [(name, "another", flatten(PLAIN)[name])]


@pytest.mark.parametrize(("record", "today", "named"), [
    ({"options": {"attention": "math"}}, {}, ["options.attention"]),
    ({"references": []}, {}, []),
    ({"description": "words", "source": "others", "prepare": [], "time_limit": "10:00:00"}, {}, []),
    ({"end": "time_limit", "time_limit": "10:00:00"}, {"end": "time_limit"}, ["time_limit"]),
    ({"deadlines": {"startup_s": 9000.0}}, {}, ["deadlines.startup_s"]),
    ({"deadlines": {"startup_s": None}}, {}, ["deadlines.startup_s"]),
    ({"deadlines": {"startup_s": 9.0}}, {}, []),
    ({"deadlines": {"startup_s": 9.0}}, {"deadlines": {"startup_s": None}}, []),
    ({"data": {"kind": "token_file", "path": "/x"}}, {}, ["data.dtype", "data.kind", "data.path", "data.seed"]),
])  # fmt: skip
def test_what_may_differ_is_little(record: dict[str, Any], today: dict[str, Any], named: list[str]) -> None:
    ran, due = (Recipe.model_validate({**PLAIN, **changes}) for changes in (record, today))
    assert [name for name, *_ in recipe_differences(ran, due)] == named


def test_options_that_were_left_out_are_those_of_the_engine() -> None:
    defaults = flatten(law._with_defaults(RECORD.recipe))
    written = {name.removeprefix("options."): value for name, value in defaults.items() if name.startswith("options.")}
    assert not [*recipe_differences(RECORD.recipe, RECORD.recipe.model_copy(update={"options": written}))]


def test_a_batch_that_grows_with_the_ranks_is_todays_on_the_ranks_of_the_run() -> None:
    grows = {"global_batch_size": None, "gradient_accumulation_steps": 4}
    recipe = Recipe.model_validate({**PLAIN, **grows})
    topology = RECORD.topology
    today = Law(recipes={(recipe.name, recipe.scale): recipe})
    assert today.wrong_work(recipe.on(topology), topology) == ""
    halved = recipe.model_copy(update={"gradient_accumulation_steps": 2}).on(topology)
    assert "global_batch_size: " in today.wrong_work(halved, topology)
    assert "gradient_accumulation_steps: the record has 2, today's" in today.wrong_work(halved, topology)


def test_each_way_to_judge_is_named() -> None:
    ran, topology, name = RECORD.recipe, RECORD.topology, (RECORD.recipe.name, RECORD.recipe.scale)
    today = {name: ran.model_copy(update={"steps": 99})}
    assert Law(recipes=today).wrong_work(ran, topology).startswith("it ran another recipe than today's: steps: ")
    assert Law(recipes=today).note(ran, topology) == ""
    recorded = Law(recipes=today, as_recorded=True)
    assert recorded.wrong_work(ran, topology) == ""
    assert recorded.note(ran, topology).startswith("judged as recorded, by its own recipe: steps: the record has 50, ")
    assert Law().wrong_work(ran, topology) == ""
    unknown = "not compared with a recipe of today: this folder has no recipe opt125m"
    assert Law().notes([RECORD, RECORD]) == [f"2 runs: {unknown}"]
    assert "with a recipe of today: x" in Law(unread="x").note(ran, topology)


def test_what_ran_is_shown() -> None:
    assert RECORD.work == {
        "engine": "torch", "model": "12 layers, hidden size 768, 12 heads, 51196 words",
        "batch": "256 sequences of 2048 tokens, 16 at a time", "precision": "bf16",
        "layout": "tensor 1, pipeline 1, sharding none", "steps": "50 of 50, judged from step 6",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("recipe", "asked", "named"),
    [({}, None, ""), ({}, 1, ""), ({}, 4, "nodes: it ran on 1, and should have run on 4"), ({"nodes": 1}, None, ""),
     ({"nodes": 3}, None, "nodes: it ran on 1, and should have run on 3"), ({"nodes": 3}, 1, "")],
)  # fmt: skip
def test_a_run_was_to_be_on_a_number_of_nodes(recipe: dict[str, Any], asked: int | None, named: str) -> None:
    """A replay asks for a number by --nodes, or by a recipe that is for one; other commands name the difference."""
    due = Recipe.model_validate({**{name: value for name, value in PLAIN.items() if name != "nodes"}, **recipe})
    ran = RECORD.recipe.model_copy(update={"nodes": due.nodes})
    today = {(ran.name, ran.scale): due}
    replay = Law(recipes=today, nodes=lambda recipe: asked or law.published_nodes(recipe))
    assert named in replay.wrong_work(ran, RECORD.topology)
    assert bool(named) == bool(replay.wrong_work(ran, RECORD.topology))
    assert replay.note(ran, RECORD.topology) == ""
    note = "on 1 node; today's recipe opt125m is for 3" if due.nodes == 3 else ""
    assert Law(recipes=today).note(ran, RECORD.topology) == note
