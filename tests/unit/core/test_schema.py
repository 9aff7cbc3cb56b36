"""Plain data and YAML into strict models and dataclasses, and errors that say where and what."""

import copy
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from pytest_llmbench.core.errors import ConfigError, unknown
from pytest_llmbench.core.plain import Positive, PositiveSeconds, json_of, read_json, read_plain, write_plain
from pytest_llmbench.core.quantity import Quantity
from pytest_llmbench.core.schema import MinutesField, QuantityField, Strict, merge, to_json, validate
from pytest_llmbench.core.wire.driver import CommandTask, DriverReport, Needed, Obstacle
from pytest_llmbench.core.wire.fault import FAULTS, SimulatedFault
from pytest_llmbench.core.wire.foreign import Mark
from pytest_llmbench.core.wire.task import Owner, Task

KEYS = st.sampled_from("abcd")
TREES = st.recursive(
    st.dictionaries(KEYS, st.integers(0, 3), max_size=3), lambda inner: st.dictionaries(KEYS, inner | st.integers(0, 3))
)

Read = Callable[[str | bytes], dict[str, Any]]


class Apple(Strict):
    """One of two kinds."""

    kind: Literal["apple"] = "apple"
    seeds: int = 5


class Pear(Strict):
    """The other kind."""

    kind: Literal["pear"]
    length: float


class Basket(Strict):
    """A model with every way to nest another."""

    name: str
    fruit: Annotated[Apple | Pear, Field(discriminator="kind")] = Apple()
    more: tuple[Apple, ...] = ()
    named: Mapping[str, Apple] = {}
    maybe: Apple | None = None
    least: QuantityField | None = None
    limit: MinutesField = 1


def test_json_nested_without_end_is_no_json() -> None:
    with pytest.raises(ValueError, match="nested too deep"):
        read_json("[" * 100_000)


@pytest.mark.parametrize(("data", "message"), [
    ({"nmae": 1}, "w: nmae: unknown key 'nmae' (did you mean 'name'?); legal: fruit, least, limit, maybe, more, "),
    ({}, "w: name: missing"),
    ({"name": []}, "w: name: Input should be a valid string"),
    ({"name": 5}, "w: name: Input should be a valid string (given: 5)"),
    ({"fruit": {"kind": "apple", "lenght": 1}}, "w: fruit.apple.lenght: unknown key 'lenght'; legal: kind, seeds"),
    ({"fruit": {"kind": "pear", "length": 1, "seeds": 1}},
     "w: fruit.pear.seeds: unknown key 'seeds'; legal: kind, length"),
    ({"fruit": {"kind": "plum"}}, "does not match any of the expected tags: 'apple', 'pear'"),
    ({"more": [{}, {"sed": 1}]}, "w: more.1.sed: unknown key 'sed' (did you mean 'seeds'?); legal: kind, seeds"),
    ({"named": {"a": {"sed": 1}}}, "w: named.a.sed: unknown key 'sed' (did you mean 'seeds'?); legal: kind, seeds"),
    ({"maybe": {"sed": 1}}, "w: maybe.sed: unknown key 'sed' (did you mean 'seeds'?); legal: kind, seeds"),
    ({"least": 5}, "w: least: 5 has no unit; write it with one, such as '5 words/s'"),
    ({"least": "5"}, "w: least: '5' has no unit"),
    ({"least": "5 bits"}, "w: least: unknown unit 'bits'"),
    ({"limit": 1.5}, "w: limit: 1.5 is not a time limit; write it in quotes"),
    ({"limit": True}, "w: limit: True is not a time limit"),
    ({"limit": 0}, "w: limit: a time limit of '0' leaves no time to run"),
    ({"limit": -5}, "w: limit: '-5' is not a time limit"),
    ({1: 2}, "w: 1"),
])  # fmt: skip
def test_an_error_names_place_key_and_choices(data: dict[Any, Any], message: str) -> None:
    """Every problem is one line with where it is; an unknown key comes with those its own mapping may have."""
    with pytest.raises(ConfigError) as error:
        validate(Basket, {"name": "x"} | data if data else {}, "w")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        validate(Basket, {"nmae": "x"}, "w")
    assert [line.split(":")[1] for line in str(error.value).splitlines()] == [" name", " nmae"]


def test_quantities_and_time_limits_survive_json() -> None:
    basket = validate(Basket, {"name": "x", "least": "0.123456789012345 1", "limit": "1-02:03"}, "w")
    assert basket.least == Quantity(0.123456789012345, "1")
    assert basket.limit == 1563
    assert Basket.model_validate_json(basket.model_dump_json()) == basket
    assert validate(Basket, basket.model_dump(mode="json"), "w") == basket


def test_numbers_that_are_not_finite_survive_json() -> None:
    for value in (math.nan, math.inf, -math.inf):
        text = Pear(kind="pear", length=value).model_dump_json()
        assert "null" not in text
        assert str(Pear.model_validate_json(text).length) == str(value)


def test_names_that_are_not_utf_8_are_spelled_out_in_json() -> None:
    """So is nothing else: numbers that are not finite stay what they are."""

    class Names(Strict):
        user: str
        path: Path
        values: tuple[float, ...]

    names = Names(user="m\udce9ller", path=Path("/home/m\udce9ller"), values=(1.5, math.nan, -math.inf))
    again = Names.model_validate_json(to_json(names, indent=1))
    assert (again.user, again.path) == ("m\\xe9ller", Path("/home/m\\xe9ller"))
    assert repr(again.values) == "(1.5, nan, -inf)"
    plain = names.model_copy(update={"user": "müller", "path": Path("/home")})
    assert to_json(plain) == plain.model_dump_json()


def test_a_model_is_never_changed() -> None:
    apple = Apple()
    with pytest.raises(ValidationError, match="frozen"):
        apple.seeds = 6  # type: ignore[misc]


@given(TREES, TREES)
def test_merging_lays_one_tree_over_another(base: dict[str, Any], over: dict[str, Any]) -> None:
    before = copy.deepcopy((base, over))
    merged = merge(base, over)
    assert (base, over) == before
    assert merged.keys() == base.keys() | over.keys()
    for key, value in merged.items():
        old, new = base.get(key), over.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            assert value == merge(old, new)
        else:
            assert value == (new if key in over else old)


@given(TREES)
def test_merging_nothing_or_the_same_changes_nothing(tree: dict[str, Any]) -> None:
    assert merge(tree, {}) == merge({}, tree) == merge(tree, tree) == tree


def test_lists_are_replaced_whole() -> None:
    assert merge({"a": [1, 2], "b": {"c": [3]}}, {"a": [4], "b": {"c": []}}) == {"a": [4], "b": {"c": []}}


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A part of the whole."""

    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Whole:
    """One field of each type."""

    count: Positive
    seconds: PositiveSeconds = 1.0
    on: bool = False
    choice: Literal["a", "b"] = "a"
    path: Path | None = None
    parts: tuple[Part, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    any: Any = None


WRONG = {
    "not JSON": ("{", r"cannot be read: "),
    "nested without end": ("[" * 100_000, "cannot be read: nested too deep"),
    "a key given twice": ('{"count": 1, "count": 2}', "cannot be read: key 'count' is given twice"),
    "a list": ("[]", r"must be a mapping \(given: \[\]\)"),
    "an unknown key": ('{"count": 1, "cuont": 2}', r"cuont: .*did you mean 'count'"),
    "a key that is missing": ("{}", "count: missing"),
    "a text for a number": ('{"count": "1"}', r"count: must be a whole number \(given: '1'\)"),
    "a bool for a number": ('{"count": true}', r"count: must be a whole number \(given: True\)"),
    "a float for a count": ('{"count": 1.0}', r"count: must be a whole number \(given: 1\.0\)"),
    "a number for a bool": ('{"count": 1, "on": 1}', r"on: must be a truth value \(given: 1\)"),
    "too small": ('{"count": 0}', r"count: must be at least 1 \(given: 0\)"),
    "not positive": ('{"count": 1, "seconds": 0}', r"seconds: must be greater than 0 \(given: 0\.0\)"),
    "not a number": ('{"count": 1, "seconds": NaN}', r"seconds: must be a finite number \(given: nan\)"),
    "infinite": ('{"count": 1, "seconds": 1e999}', r"seconds: must be a finite number \(given: inf\)"),
    "too large for any float": (f'{{"count": 1, "seconds": 1{400 * "0"}}}', r"seconds: must be a finite number "),
    "not finite, deep inside": ('{"count": 1, "any": {"x": [1, -Infinity]}}', r"any\.x\.1: must be a finite number "),
    "none where there must be one": ('{"count": null}', r"count: must be a whole number \(given: None\)"),
    "another choice": ('{"count": 1, "choice": "c"}', "choice: unknown value 'c'"),
    "a number for a path": ('{"count": 1, "path": 1}', r"path: must be a text \(given: 1\)"),
    "a text for a list": ('{"count": 1, "parts": "x"}', r"parts: must be a list \(given: 'x'\)"),
    "a part of a part": ('{"count": 1, "parts": [{"name": "x"}, {}]}', r"parts\.1\.name: missing"),
    "a list for a mapping": ('{"count": 1, "texts": []}', r"texts: must be a mapping \(given: \[\]\)"),
    "a number in a mapping": ('{"count": 1, "texts": {"x": 1}}', r"texts\.x: must be a text \(given: 1\)"),
}


@pytest.mark.parametrize(("text", "why"), WRONG.values(), ids=WRONG)
def test_anything_else_is_refused(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "whole.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=rf"whole\.json: {why}"):
        read_plain(Whole, path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"whole\.json: cannot be read: "):
        read_plain(Whole, tmp_path / "whole.json")
    with pytest.raises(ConfigError, match="cannot be read: "):
        read_plain(Whole, tmp_path)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    whole = Whole(
        count=7, seconds=2, on=True, choice="b", path=Path("/a"), parts=(Part(name="ä"), Part(name='"')),
        texts={"x": "y"}, any={"list": [1, None]},
    )  # fmt: skip
    write_plain(tmp_path / "whole.json", whole)
    assert read_plain(Whole, tmp_path / "whole.json") == whole
    assert (tmp_path / "whole.json").stat().st_mode & 0o777 == 0o600


UNSENT: dict[str, tuple[Any, str]] = {
    "not a number": ({"loss": {"bound": [1.0, math.nan]}},
                     r"any\.loss\.bound\.1: must be a finite number \(given: nan\)"),
    "infinite": (-math.inf, r"any: must be a finite number \(given: -inf\)"),
    "a key that JSON would make a text": ({1: "x"}, r"any: every key must be a text \(given: 1\)"),
    "a set": ({"x": {1}}, r"any\.x: must be text, a number, a truth value, a list or a mapping \(given: \{1\}\)"),
}  # fmt: skip


@pytest.mark.parametrize(("value", "why"), UNSENT.values(), ids=UNSENT)
def test_what_would_arrive_as_something_else_is_not_sent(tmp_path: Path, value: Any, why: str) -> None:
    path = tmp_path / "whole.json"
    write_plain(path, whole := Whole(count=1))
    with pytest.raises(ConfigError, match=rf"whole\.json: {why}"):
        write_plain(path, Whole(count=1, any=value))
    assert read_plain(Whole, path) == whole


def test_what_has_no_end_is_not_sent(tmp_path: Path) -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ConfigError, match=r"whole\.json: nested without end"):
        write_plain(tmp_path / "whole.json", Whole(count=1, any=endless))
    assert not (tmp_path / "whole.json").exists()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_line_has_a_number_that_is_not_finite(value: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_of(Whole(count=1, seconds=value))


WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
MAPPINGS = st.dictionaries(WORDS, WORDS, max_size=3)
COUNTS = st.integers(1, 10**6)
SHAPE = {"nodes": COUNTS, "ranks_per_node": COUNTS, "device": st.sampled_from(["cuda", "cpu"])}
PATHS = st.none() | st.just(Path("/shared/a folder"))
OWNERS = st.builds(Owner, path=st.just(Path("/shared/owner")), ttl_s=st.floats(0.1, 1e6), machine_lock=PATHS)
WIRE: st.SearchStrategy[Task | CommandTask | DriverReport] = st.one_of(
    st.builds(
        Task, **SHAPE, token=st.none() | WORDS, entry=WORDS, config=MAPPINGS, env=MAPPINGS, owner=st.none() | OWNERS,
        may_end_early=st.booleans(),
        simulate=st.none() | st.builds(SimulatedFault, name=st.sampled_from(FAULTS), step=COUNTS),
    ),
    st.builds(
        CommandTask, **SHAPE, token=st.none() | WORDS, hosts=st.lists(WORDS, max_size=3).map(tuple),
        prepare=st.lists(st.builds(Needed, name=WORDS, make=WORDS, path=st.none() | WORDS), max_size=2).map(tuple),
        env=MAPPINGS, secrets=MAPPINGS, owner=st.none() | OWNERS,
    ),
    st.builds(
        DriverReport, hosts=st.lists(WORDS, max_size=3).map(tuple), device=WORDS, started=st.floats(0, 1e12),
        ended=st.none() | st.floats(0, 1e12), exit_code=st.none() | st.integers(0, 255), provenance=MAPPINGS,
        problem=st.none() | st.builds(Obstacle, kind=st.just("not_prepared"), message=WORDS),
        secrets=st.lists(st.builds(Mark, length=COUNTS, salt=WORDS, digest=WORDS), max_size=2).map(tuple),
    ),
)  # fmt: skip


@given(WIRE)
def test_all_that_crosses_the_wire_arrives(tmp_path_factory: pytest.TempPathFactory, sent: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "sent.json"
    write_plain(path, sent)
    assert read_plain(type(sent), path) == sent
    json.loads(path.read_bytes(), parse_constant=pytest.fail)


def test_an_unknown_name_is_answered_with_the_legal_ones_and_a_guess() -> None:
    assert unknown("key", "stpes", ["time_limit", "steps"]) == (
        "unknown key 'stpes' (did you mean 'steps'?); legal: steps, time_limit"
    )
    assert unknown("unit", "bananas", ["s", "ms"]) == "unknown unit 'bananas'; legal: ms, s"
    assert unknown("system", 7, []) == "unknown system '7'; legal: none"


def test_of_many_names_those_like_the_given_one_are_listed() -> None:
    found = unknown("recipe", "gpt7b", ["gpt7", *map(str, range(40))])
    assert found == "unknown recipe 'gpt7b' (did you mean 'gpt7'?); 41 are legal, gpt7 among them"


def test_no_terminal_obeys_a_message() -> None:
    assert str(ConfigError("key '\x1b[2J\x1b]0;owned\x07a\x00\ud800\ufffe' of \u202etxt")) == (
        r"key 'a\x00\ud800\ufffe' of \u202etxt"
    )
