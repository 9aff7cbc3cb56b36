"""YAML files: plain mappings, and nothing taken in silence for something else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.yaml_files import read_yaml

Read = Callable[[str | bytes], dict[str, Any]]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def run(text: str | bytes) -> dict[str, Any]:
        path = tmp_path / "file.yaml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return read_yaml(path)

    return run


def test_a_mapping_is_read(read: Read) -> None:
    """A key that a merge brought may be overridden, the first of several counts, and an alias may be used often."""
    text = "base: &base {a: 1, b: 2}\nc: {<<: *base, b: 3}\nd: *base\ne: [x, 1.5, true]"
    base = {"a": 1, "b": 2}
    assert read(text) == {"base": base, "c": {"a": 1, "b": 3}, "d": base, "e": ["x", 1.5, True]}
    text = "x: {child: &child {<<: &base {a: 1}, a: 2}}\nparent: {<<: *child, b: 3}"
    assert read(text) == {"x": {"child": {"a": 2}}, "parent": {"a": 2, "b": 3}}
    text = "a: &a {speed: 1}\nb: &b {speed: 2, loss: 3}\nx: {<<: [*a, *b]}\ny: {<<: [*b, *a], loss: 4}"
    assert {key: value for key, value in read(text).items() if key in "xy"} == {
        "x": {"speed": 1, "loss": 3}, "y": {"speed": 2, "loss": 4},
    }  # fmt: skip
    assert read("a: &a [1, {b: 2}]\nb: [*a, *a]\nc: &c 3\nd: *c") == {
        "a": [1, {"b": 2}], "b": [[1, {"b": 2}]] * 2, "c": 3, "d": 3,
    }  # fmt: skip


def bomb(level: str) -> str:
    """Eight lines, each with nine times the one before: of a few hundred bytes, 43 million values."""
    return "".join(f"a{n}: &a{n} {level.format(', '.join([f'*a{n - 1}'] * 9))}\n" for n in range(1, 9))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", "line 3, column 1: key 'a' is given twice"),
        ("x: [{y: {a: 1, a: 1}}]", "line 1, column 16: key 'a' is given twice"),
        ("limit: 1:30:00", '1:30:00 without quotes is a number to base 60; write "1:30:00"'),
        ("x: [1:30.5]", "1:30.5 without quotes is a number to base 60"),
        ("- a\n- b", "expected a mapping of keys, found list"),
        ("", "expected a mapping of keys, found NoneType"),
        ("words", "expected a mapping of keys, found str"),
        ("b:\na: [1\n", r"cannot be read: line \d, column \d: did not find .* from line 2\)$"),
        ("a: *nowhere", "cannot be read"),
        ("a: !!python/name:os.system", "cannot be read"),
        ("date: 2023-02-30", "cannot be read: day is out of range for month"),
        ("? [a]\n: b", "unhashable key"),
        ("a: !!int words", "cannot be read"),
        ("a: 1\n--- \nb: 2", "expected a single document"),
        (b"a: caf\xe9", "cannot be read"),
        (b"a: \x00", "cannot be read"),
        # The C parser of PyYAML has had a bound of its own since 6.0.4, and reads ahead.
        ("a: " + "[" * 100_000, "nested deeper than 50|exceeded maximum nesting depth"),
        ("a: " + "{b: " * 100_000, "nested deeper than 50|exceeded maximum nesting depth"),
        ("- " * 100_000, "nested deeper than 50"),
        ("a: &a {b: [*a]}", r"\*a is inside of &a: it has no end"),
        ("a0: &a0 {b: c}\n" + bomb("{{<<: [{}]}}"), "more than 100000 values, aliases included"),
        ("a0: &a0 [b]\n" + bomb("[{}]"), "more than 100000 values, aliases included"),
        ("a0: &a0 [b]\n" + "".join(f"a{each + 1}: &a{each + 1} [*a{each}]\n" for each in range(99)), "deeper than 50"),
        ("a: " + "x" * (1 << 24), "larger than 16 MiB"),
    ],
)
def test_what_is_no_plain_mapping_is_refused(read: Read, text: str | bytes, message: str) -> None:
    """Not YAML, not UTF-8, not a mapping, a key twice, a number to base 60: one error that names the file."""
    with pytest.raises(ConfigError, match=message) as error:
        read(text)
    assert "file.yaml: " in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "gone.yaml", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read") as error:
            read_yaml(path)
        assert str(error.value).startswith(f"{path}: ")


@given(st.text(alphabet="ab:- \n[]{}!&*<?|>'\"#%@,1.tn", max_size=40) | st.binary(max_size=40))
def test_any_bytes_are_a_mapping_or_refused(tmp_path_factory: pytest.TempPathFactory, content: str | bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    try:
        data = read_yaml(path)
    except ConfigError:
        return
    assert isinstance(data, dict)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.dates() | st.text(max_size=6)
DATA = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=6), DATA, max_size=3), st.sampled_from([None, True, False]))
def test_sound_documents_are_read_as_pyyaml_reads_them(
    tmp_path_factory: pytest.TempPathFactory, data: dict[str, Any], flow: bool | None
) -> None:
    path = tmp_path_factory.getbasetemp() / "sound.yaml"
    path.write_text(yaml.safe_dump(data, default_flow_style=flow, allow_unicode=True), encoding="utf-8")
    assert repr(read_yaml(path)) == repr(yaml.safe_load(path.read_bytes()))
