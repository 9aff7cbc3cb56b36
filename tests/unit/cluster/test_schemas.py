"""JSON Schemas against the loaders: what a schema refuses, and what it takes."""

import copy
import datetime as dt
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from pytest_llmbench.cluster.recipes import check_recipes
from pytest_llmbench.cluster.system import load_system
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.paths import shipped
from pytest_llmbench.core.recipe.recipes import load_recipes
from pytest_llmbench.core.yaml_files import read_yaml

SCHEMAS = ("health-record", "recipe", "run-record", "system")
KINDS = {"recipe": "recipes", "system": "systems"}
FILES = [
    (kind, path)
    for kind, folder in KINDS.items()
    for path in sorted((shipped("recipes").parent / folder).glob("*.yaml"))
]
RECORDED = Path(__file__).parents[2] / "data" / "session"
FOLDERS = {"run-record": "runs", "health-record": "checks"}


def validator(kind: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(
        json.loads((shipped("schemas") / f"{kind}.json").read_text(encoding="utf-8"))
    )


def as_json(value: Any) -> Any:
    """What YAML has and JSON has not, as an editor sees it."""
    if isinstance(value, dict):
        return {key: as_json(each) for key, each in value.items()}
    if isinstance(value, list):
        return [as_json(each) for each in value]
    return value.isoformat() if isinstance(value, dt.date) else value


def misspelt(data: Any, root: Any) -> Iterator[Any]:
    """The whole of a file once for each mapping in it, with a key there that nobody knows."""
    if isinstance(data, dict):
        data["zzz"] = 1
        yield copy.deepcopy(root)
        del data["zzz"]
    inner = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    for each in list(inner):
        yield from misspelt(each, root)


def unknown_key(kind: str, path: Path) -> bool:
    """Whether the loader finds an unknown key in a file."""
    try:
        if kind == "system":
            load_system(str(path), [])
        else:
            for recipe in load_recipes([path.parent]).values():
                check_recipes([recipe])
    except ConfigError as error:
        return "unknown key" in str(error)
    return False


def test_each_schema_is_one_and_has_its_version() -> None:
    for kind in SCHEMAS:
        schema = validator(kind).schema
        assert isinstance(schema, dict)
        jsonschema.Draft202012Validator.check_schema(schema)
        assert re.fullmatch(rf"urn:pytest-llmbench:schema:{kind}:\d+", schema["$id"])


@pytest.mark.parametrize(("kind", "path"), FILES, ids=[path.stem for _, path in FILES])
def test_a_shipped_file_is_valid_and_names_its_schema(kind: str, path: Path) -> None:
    found = re.fullmatch(r"# yaml-language-server: \$schema=(\S+)", path.read_text(encoding="utf-8").splitlines()[0])
    assert found is not None
    assert (path.parent / found[1]).resolve() == shipped("schemas") / f"{kind}.json"
    assert list(validator(kind).iter_errors(as_json(read_yaml(path)))) == []


@pytest.mark.parametrize(("kind", "name"), [("recipe", "azure_opt"), ("recipe", "opt"), ("system", "nd96amsr_a100_v4")])
def test_a_schema_refuses_each_misspelt_key_that_the_loader_refuses(kind: str, name: str, tmp_path: Path) -> None:
    data = as_json(read_yaml(shipped("recipes").parent / KINDS[kind] / f"{name}.yaml"))
    for key, recipe in list(data.get("recipes", {}).items())[2:]:  # two of them have all there is
        del data["recipes"][key], recipe
    judge, refused = validator(kind), 0
    for changed in misspelt(data, data):
        path = tmp_path / "changed.yaml"
        path.write_text(yaml.safe_dump(changed))
        if unknown_key(kind, path):
            refused += 1
            assert not judge.is_valid(changed), changed
    assert refused > 5


def test_a_schema_knows_the_options_of_engines_and_checks() -> None:
    judge = validator("recipe")
    for bad in (
        {"family": "f", "recipes": {"r": {"engine": "torch", "options": {"zzz": 1}}}},
        {"family": "f", "defaults": {"engine": "torch"}, "recipes": {"r": {"options": {"zzz": 1}}}},
        {"family": "f", "defaults": {"engine": "torch"}, "smoke": {"options": {"zzz": 1}}, "recipes": {"r": {}}},
    ):
        assert not judge.is_valid(bad), bad
    assert judge.is_valid({"family": "f", "recipes": {"r": {"engine": "of_others", "options": {"zzz": 1}}}})
    system = {"name": "s", "cluster": "slurm", "validation": {"pairs": {"options": {"zzz": 1}}}}
    assert not validator("system").is_valid(system)
    system["validation"] = {"of_others": {"options": {"zzz": 1}}}
    assert validator("system").is_valid(system)


@pytest.mark.parametrize("kind", ["run-record", "health-record"])
def test_a_record_is_valid_and_a_misspelt_one_is_not(kind: str) -> None:
    """Every record of a recorded session; and one with one more key in each of its parts."""
    judge = validator(kind)
    records = [json.loads(path.read_bytes()) for path in RECORDED.rglob(f"{FOLDERS[kind]}/*/record.json")]
    assert len(records) >= 3
    for record in records:
        assert list(judge.iter_errors(record)) == []
    whole = next(record for record in records if record.get("steps") or record.get("report", {}).get("readings"))
    parts = {"run-record": ("timings", "recipe", "steps"), "health-record": ("timings", "report")}[kind]
    for part in (whole, *(whole[name] for name in parts)):
        inner = part[0] if isinstance(part, list) else part
        inner["zzz"] = 1
        assert not judge.is_valid(whole)
        del inner["zzz"]


def described(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each key with its entry in `properties`, of a whole schema and of the models in it."""
    for owner in (schema, *schema.get("$defs", {}).values()):
        yield from owner.get("properties", {}).items()


@pytest.mark.parametrize("kind", SCHEMAS)
def test_each_description_is_complete_alone(kind: str) -> None:
    """A reader of one key sees a sentence with a subject of its own, not the rest of another one."""
    leans = re.compile(
        r"(It|Its|They|Their|This|That|These|Those|The same|See|Of|As|By|In|For|Such|To|From|At|Over|Among|So|Also"
        r"|Likewise|Without|With|There)\b"
    )
    schema = validator(kind).schema
    keys = [(key, field["description"]) for key, field in described(schema) if "description" in field]
    assert len(keys) > 20
    for key, text in keys:
        assert not leans.match(text), (key, text)
        assert text[0].isupper() or text[0] in "`0", (key, text)
        assert text.endswith("."), (key, text)
        assert len(re.findall(r"[A-Za-z]{3,}", text)) >= 2, (key, text)
    without = {key for key, field in described(schema) if not {"description", "$ref"} & field.keys()}
    assert without <= {"value", "unit"}  # of a quantity, which is written as a text
