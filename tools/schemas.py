"""Makes the JSON Schemas in `suites/schemas/` from the models, for `tools/reference.py`.

They are for editors and for programs: of the files that people write, and of the records.

A schema refuses the keys that the loader refuses. Only the loader finds keys that contradict each other, and bounds in
a unit of another kind.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from pytest_llmbench.checks.base import CHECKS, CheckSettings
from pytest_llmbench.cluster.system import System
from pytest_llmbench.core.extensions import Extensions
from pytest_llmbench.core.recipe.recipes import NOT_WRITTEN, Recipe
from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.core.schema import Document, Strict, descriptions
from pytest_llmbench.engines.base import ENGINES

# Raised when a file of an earlier version would be refused, or would mean something else.
RECIPE_VERSION, SYSTEM_VERSION = 1, 1
RECORD_VERSION: int = Document.model_fields["schema_version"].default
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_DEFS = "#/$defs/"

Schema = dict[str, Any]


def schema_of(kind: str) -> Schema:
    """The JSON Schema of one of `SCHEMAS`. Raises KeyError: the kind is unknown."""
    version, title, make = SCHEMAS[kind]
    # A name alone, because the schemas lack an address on the web so far.
    head = {"$schema": _DIALECT, "$id": f"urn:pytest-llmbench:schema:{kind}:{version}", "title": title}
    return {**head, **make()}


def schema_text(kind: str) -> str:
    """The schema as the text of its file."""
    return json.dumps(schema_of(kind), indent=1, ensure_ascii=False) + "\n"


def _recipe_file() -> Schema:
    """A family: what `defaults`, a recipe and `smoke` have is merged, so each of them may lack any key."""
    options = _options(ENGINES)
    models: list[type[BaseModel]] = [Recipe, *options.values()]
    defs = _definitions(models)
    _drop_required(defs, [model.__name__ for model in models])
    block = defs["Recipe"]
    for key in NOT_WRITTEN:
        del block["properties"][key]
    block["properties"]["engine"]["anyOf"] = [{"enum": list(options)}, {"type": "string"}]
    block["properties"]["engine"].pop("type", None)
    # The engine stands in the block itself, or in `defaults` for all: then its options are known.
    block["allOf"] = [
        {"if": _object_with(engine=name), "then": {"properties": {"options": _ref(model)}}}
        for name, model in options.items()
    ]
    bare = {"not": {"required": ["engine"]}}
    inherited = []
    for name, model in options.items():
        given = {"defaults": _object_with(engine=name), "recipes": {"additionalProperties": bare}, "smoke": bare}
        then = {"properties": {"options": _ref(model)}}
        inherited.append(
            {
                "if": {"required": ["defaults"], "properties": given},
                "then": {"properties": {"recipes": {"additionalProperties": then}, "smoke": then}},
            }
        )
    properties = {
        "family": {"type": "string", "description": "Name of the family, for people."},
        "defaults": {**_ref(Recipe), "description": "Keys that are laid under each recipe."},
        "smoke": {**_ref(Recipe), "description": "Keys that are laid over each recipe at `--scale smoke`."},
        "recipes": {
            "type": "object",
            "additionalProperties": _ref(Recipe),
            "description": "Own keys of each recipe, by its name.",
        },
    }
    closed = {"type": "object", "properties": properties, "required": ["family", "recipes"]}
    return {**closed, "additionalProperties": False, "allOf": inherited, "$defs": defs}


def _system_file() -> Schema:
    options = _options(CHECKS)
    defs = _definitions([System, CheckSettings, *options.values()])
    system = defs.pop("System")
    system.pop("title", None)
    known = {
        name: {"allOf": [_ref(CheckSettings), {"properties": {"options": _ref(model)}}]}
        for name, model in sorted(options.items())
    }
    system["properties"]["validation"]["properties"] = known
    return {**system, "$defs": defs}


def _record(model: type[BaseModel]) -> Schema:
    defs = _definitions([model])
    record = defs.pop(model.__name__)
    del record["title"]
    return {**record, "$defs": defs}


SCHEMAS: Mapping[str, tuple[int, str, Callable[[], Schema]]] = {
    "recipe": (RECIPE_VERSION, "Recipe file of pytest-llmbench", _recipe_file),
    "system": (SYSTEM_VERSION, "System file of pytest-llmbench", _system_file),
    "run-record": (RECORD_VERSION, "Run record of pytest-llmbench", partial(_record, RunRecord)),
    "health-record": (RECORD_VERSION, "Health record of pytest-llmbench", partial(_record, HealthRecord)),
}


class _Generator(GenerateJsonSchema):
    """Generates schemas with the meaning of each key, in which a number may be a text as in our records: `NaN`."""

    def float_schema(self, schema: Any) -> Schema:
        finite = super().float_schema(schema)
        return {"anyOf": [finite, {"enum": ["NaN", "Infinity", "-Infinity"]}]}

    def model_schema(self, schema: Any) -> Schema:
        return _described(super().model_schema(schema), schema["cls"])

    def dataclass_schema(self, schema: Any) -> Schema:
        return _described(super().dataclass_schema(schema), schema["cls"])


def _described(schema: Schema, kind: type) -> Schema:
    for key, text in descriptions(kind).items():
        if key in schema.get("properties", {}):
            schema["properties"][key]["description"] = text
    return schema


def _definitions(models: list[type[BaseModel]]) -> dict[str, Schema]:
    wanted = [(model, "validation") for model in dict.fromkeys(models)]
    _, schema = models_json_schema(wanted, ref_template=_DEFS + "{model}", schema_generator=_Generator)  # type: ignore[arg-type]
    defs: dict[str, Schema] = schema["$defs"]
    for definition in defs.values():
        if "description" in definition:
            definition["description"] = " ".join(definition["description"].partition("\n\n")[0].split())
        for field in definition.get("properties", {}).values():
            field.pop("title", None)
            if "description" in field:  # last, behind what it describes
                field["description"] = field.pop("description")
    return defs


def _options(known: Extensions[Any]) -> dict[str, type[Strict]]:
    """The models of the options of our own engines or checks, by name; those of others may be in a file as well."""
    return {name: known.load(name).options for name in sorted(known.names()) if known.is_ours(name)}


def _drop_required(defs: dict[str, Schema], waiting: list[str]) -> None:
    """Let every key be missing where mappings are merged: all but what is in a list, which is replaced whole."""
    merged: set[str] = set()
    while waiting:
        if (name := waiting.pop()) not in merged:
            merged.add(name)
            waiting.extend(_merged_parts(defs[name]))
    for name in merged:
        defs[name].pop("required", None)
        for field in defs[name].get("properties", {}).values():
            if "oneOf" in field:  # the key that distinguishes its models may be in another block
                field["anyOf"] = field.pop("oneOf")
                field.pop("discriminator", None)


def _merged_parts(schema: Any) -> Iterator[str]:
    """Names of the definitions that a schema refers to outside of lists."""
    if isinstance(schema, list):
        for part in schema:
            yield from _merged_parts(part)
    elif isinstance(schema, dict):
        if "$ref" in schema:
            yield schema["$ref"].removeprefix(_DEFS)
        for key, part in schema.items():
            if key not in {"items", "prefixItems"}:
                yield from _merged_parts(part)


def _ref(model: type[BaseModel]) -> Schema:
    return {"$ref": _DEFS + model.__name__}


def _object_with(**constants: str) -> Schema:
    return {"required": list(constants), "properties": {key: {"const": value} for key, value in constants.items()}}
