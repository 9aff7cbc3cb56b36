"""Helpers for checks that ask every node the same question, and find the values that differ from the majority."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel

from pytest_llmbench.checks.base import Answer

AnswerModel = TypeVar("AnswerModel", bound=BaseModel)


def one_per_host(answers: Sequence[Answer]) -> tuple[dict[str, Mapping[str, Any]], dict[str, str]]:
    """Split the answers of a probe with one rank per node into facts by host, and why there are none by host."""
    facts = {answer.host: answer.data for answer in answers if answer.data is not None}
    return facts, silent(answers)


def read_per_host(answers: Sequence[Answer], model: type[AnswerModel]) -> tuple[dict[str, AnswerModel], dict[str, str]]:
    """The same, with each node's facts as the model in which its function answers."""
    facts, missing = one_per_host(answers)
    return {host: model.model_validate(told) for host, told in facts.items()}, missing


def silent(answers: Sequence[Answer]) -> dict[str, str]:
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
