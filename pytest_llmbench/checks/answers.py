"""Helpers for checks that ask every node the same question, and find the values that differ from the majority."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError

from pytest_llmbench.checks.base import Answer, AnswerData
from pytest_llmbench.core.record.health import Report

AnswerModel = TypeVar("AnswerModel", bound=BaseModel)
AskedKeys = Mapping[str, Collection[str]]
Key = TypeVar("Key")


def read_answers(
    answers: Sequence[Answer], model: type[AnswerModel], asked: AskedKeys | None = None
) -> list[Answer[AnswerModel]]:
    """Read each answer as the model in which the function of the ranks answers.

    An answer in another form counts as missing: its `why` names the field. So does one without a field
    named in `asked`, or without one of the keys asked for in that field.
    """
    left = [*reversed(answers)]
    del answers  # each is let go once it is read, unless the caller keeps it: they are hundreds of megabytes
    return [_read(left.pop(), model, asked or {}) for _ in range(len(left))]


def _read(answer: Answer, model: type[AnswerModel], asked: AskedKeys) -> Answer[AnswerModel]:
    data: AnswerModel | None = None
    reason = answer.why
    if answer.data is not None:
        try:  # as JSON, which accepts a list for a tuple, and refuses a text for a number
            data = model.model_validate_json(json.dumps(answer.data), strict=True)
            absent = [key for field, keys in asked.items() for key in _find_absent(data, field, keys)]
            data, reason = (None, describe_damage(absent[0])) if absent else (data, None)
        except ValidationError as error:
            first, more = error.errors()[0], error.error_count() - 1
            what = f"{first['msg']} (and {more} more)" if more else first["msg"]
            reason = describe_damage(".".join(map(str, first["loc"])) or "all of it", what)
    return replace(cast("Answer[AnswerModel]", answer), data=data, why=reason)


def _find_absent(data: BaseModel, field: str, keys: Collection[str]) -> list[str]:
    value = getattr(data, field)
    return [field] if value is None else [f"{field}.{key}" for key in keys if key not in value]


def describe_damage(field: str, what: str = "Field required") -> str:
    """The reason to leave a node unjudged whose answer is damaged in a field."""
    return f"its answer is damaged: {field}: {what}; run the check again, and see the log of the rank"


def one_per_host(answers: Sequence[Answer[AnswerData]]) -> tuple[dict[str, AnswerData], dict[str, str]]:
    """Split the answers of a probe with one rank per node: facts by host, and reasons for missing ones by host."""
    facts = {answer.host: answer.data for answer in answers if answer.data is not None}
    return facts, silent(answers)


def read_per_host(
    answers: Sequence[Answer], model: type[AnswerModel], asked: AskedKeys | None = None
) -> tuple[dict[str, AnswerModel], dict[str, str]]:
    """Read the answers of a probe with one rank per node as models, by host; see `read_answers`, `one_per_host`."""
    return one_per_host(read_answers(answers, model, asked))


def silent(answers: Sequence[Answer[Any]]) -> dict[str, str]:
    """The reason for a missing answer, by host: of the first of its ranks without one."""
    reasons: dict[str, str] = {}
    for answer in answers:
        if answer.why is not None:
            reasons.setdefault(answer.host, f"rank {answer.rank}: {answer.why}")
    return reasons


def skip_all(reason: str, hosts: Iterable[str], unjudged: Mapping[str, str]) -> Report:
    """A report that skips these hosts; those whose answer failed stay an ERROR."""
    return Report(unjudged=unjudged, skipped=dict.fromkeys(hosts, reason)) if unjudged else Report(skip=reason)


def dissenters(values: Mapping[Key, str]) -> list[Key] | None:
    """Keys whose value differs from that of more than half of all; None without such a majority.

    One alone agrees with itself; of two that differ, either may be right.
    """
    if not values:
        return []
    common, votes = Counter(values.values()).most_common(1)[0]
    if 2 * votes <= len(values):
        return None
    return [key for key, value in values.items() if value != common]
