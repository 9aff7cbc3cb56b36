"""Helpers for checks that ask every node the same question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_llmbench.checks.base import Answer


def one_per_host(answers: Sequence[Answer]) -> tuple[dict[str, Mapping[str, Any]], dict[str, str]]:
    """Split the answers of a probe with one rank per node into facts by host, and why there are none by host."""
    facts = {answer.host: answer.data for answer in answers if answer.data is not None}
    return facts, silent(answers)


def silent(answers: Sequence[Answer]) -> dict[str, str]:
    """The reason for a missing answer, by host: the first of its ranks that did not counts."""
    told: dict[str, str] = {}
    for answer in answers:
        if answer.why is not None:
            told.setdefault(answer.host, f"rank {answer.rank}: {answer.why}")
    return told
