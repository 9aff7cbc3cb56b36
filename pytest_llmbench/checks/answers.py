"""Helpers for checks that ask every node the same question, and find the values that differ from the majority."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError

from pytest_llmbench.checks.base import Answer, AnswerData

AnswerModel = TypeVar("AnswerModel", bound=BaseModel)


def read_answers(answers: Sequence[Answer], model: type[AnswerModel]) -> list[Answer[AnswerModel]]:
    """Read each answer as the model in which the function of the ranks answers.

    An answer that is not exactly such a one counts as missing: its `why` names the field.
    """
    return [_read(answer, model) for answer in answers]


def _read(answer: Answer, model: type[AnswerModel]) -> Answer[AnswerModel]:
    data: AnswerModel | None = None
    why = answer.why
    if answer.data is not None:
        try:  # as JSON, in which a list may be a tuple, but a text is not a number
            data = model.model_validate_json(json.dumps(answer.data), strict=True)
        except ValidationError as error:
            why = _damage(error)
    return replace(cast("Answer[AnswerModel]", answer), data=data, why=why)


def _damage(error: ValidationError) -> str:
    first = error.errors()[0]
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    where = ".".join(map(str, first["loc"])) or "all of it"
    return f"its answer is damaged: {where}: {first['msg']}{more}; run the check again, and see the log of the rank"


def one_per_host(answers: Sequence[Answer[AnswerData]]) -> tuple[dict[str, AnswerData], dict[str, str]]:
    """Split the answers of a probe with one rank per node into facts by host, and why there are none by host."""
    facts = {answer.host: answer.data for answer in answers if answer.data is not None}
    return facts, silent(answers)


def read_per_host(answers: Sequence[Answer], model: type[AnswerModel]) -> tuple[dict[str, AnswerModel], dict[str, str]]:
    """The same, with each node's facts as the model in which its function answers."""
    return one_per_host(read_answers(answers, model))


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
