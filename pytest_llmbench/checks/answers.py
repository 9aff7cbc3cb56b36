"""Helpers for checks that ask every node the same question, and find the values that differ from the majority."""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError

from pytest_llmbench.checks.base import Answer, AnswerData

AnswerModel = TypeVar("AnswerModel", bound=BaseModel)
AskedKeys = Mapping[str, Collection[str]]


def read_answers(
    answers: Sequence[Answer], model: type[AnswerModel], asked: AskedKeys | None = None
) -> list[Answer[AnswerModel]]:
    """Read each answer as the model in which the function of the ranks answers.

    An answer that is not exactly such a one counts as missing: its `why` names the field. So does one that lacks a
    field that was `asked` for, or one of the keys that were asked for in it.
    """
    return [_read(answer, model, asked or {}) for answer in answers]


def _read(answer: Answer, model: type[AnswerModel], asked: AskedKeys) -> Answer[AnswerModel]:
    data: AnswerModel | None = None
    why = answer.why
    if answer.data is not None:
        try:  # as JSON, in which a list may be a tuple, but a text is not a number
            data = model.model_validate_json(json.dumps(answer.data), strict=True)
        except ValidationError as error:
            why = _damage(error)
        else:
            absent = next(_absent(data, asked), None)
            data, why = (data, None) if absent is None else (None, damaged(absent))
    return replace(cast("Answer[AnswerModel]", answer), data=data, why=why)


def _absent(data: BaseModel, asked: AskedKeys) -> Iterator[str]:
    for field, keys in asked.items():
        told = getattr(data, field)
        if told is None:
            yield field
        else:
            yield from (f"{field}.{key}" for key in keys if key not in told)


def _damage(error: ValidationError) -> str:
    first = error.errors()[0]
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return damaged(".".join(map(str, first["loc"])) or "all of it", f"{first['msg']}{more}")


def damaged(field: str, what: str = "Field required") -> str:
    """The reason not to judge a node whose answer is damaged in a field."""
    return f"its answer is damaged: {field}: {what}; run the check again, and see the log of the rank"


def one_per_host(answers: Sequence[Answer[AnswerData]]) -> tuple[dict[str, AnswerData], dict[str, str]]:
    """Split the answers of a probe with one rank per node into facts by host, and why there are none by host."""
    facts = {answer.host: answer.data for answer in answers if answer.data is not None}
    return facts, silent(answers)


def read_per_host(
    answers: Sequence[Answer], model: type[AnswerModel], asked: AskedKeys | None = None
) -> tuple[dict[str, AnswerModel], dict[str, str]]:
    """The same, with each node's facts as the model in which its function answers; see `read_answers`."""
    return one_per_host(read_answers(answers, model, asked))


def silent(answers: Sequence[Answer[Any]]) -> dict[str, str]:
    """The reason for a missing answer, by host: the first of its ranks that did not counts."""
    told: dict[str, str] = {}
    for answer in answers:
        if answer.why is not None:
            told.setdefault(answer.host, f"rank {answer.rank}: {answer.why}")
    return told


Key = TypeVar("Key")

NOT_COMPARED = "rates on CPUs and at scale smoke scatter too much to be compared, unless `tolerance` is set"


def dissenters(values: Mapping[Key, str]) -> list[Key] | None:
    """Those that differ from what more than half of all have; None where there is no such majority.

    One alone agrees with itself; of two that differ, either may be right.
    """
    if not values:
        return []
    common, votes = Counter(values.values()).most_common(1)[0]
    if 2 * votes <= len(values):
        return None
    return [key for key, value in values.items() if value != common]
