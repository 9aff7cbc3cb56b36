"""A projection for people, and as a document with every term, from which a reader can compute it again."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pytest_llmbench.core.quantity import counted
from pytest_llmbench.projection.memory import MemoryNeed
from pytest_llmbench.projection.model import Projection
from pytest_llmbench.projection.published import CALIBRATED_ERROR


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectionRow:
    """One number of nodes with one layout.

    Attributes:
        refused: the reason for a missing answer; None where it has one.
        memory: memory of the fullest GPU; None where the layout does not even divide.
        projection: the answer; None where it is refused.
    """

    nodes: int
    refused: str | None = None
    memory: MemoryNeed | None = None
    projection: Projection | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectionAnswer:
    """All rows, and what they rest on.

    Attributes:
        rows: every layout that was tried.
        at_most_s: goal for the time for 20 million tokens, s; None where nothing is asked.
        memory_gib: memory of one GPU.
        assumptions: unmeasured inputs, in words.
    """

    title: str
    rows: Sequence[ProjectionRow]
    at_most_s: float | None
    memory_gib: float
    assumptions: Sequence[str]
    inputs: Mapping[str, Any]

    def best(self) -> dict[int, ProjectionRow]:
        """By number of nodes the layout with the highest likely rate, or, where all are refused, the first."""
        found: dict[int, ProjectionRow] = {}
        for row in self.rows:
            if row.nodes not in found or _rate(row) > _rate(found[row.nodes]):
                found[row.nodes] = row
        return dict(sorted(found.items()))

    def smallest(self, how: str) -> int | None:
        """The fewest of the nodes asked that keep the bound; None where none does, or none is asked.

        Args:
            how: `likely`, by the middle; `worst`, with the whole band; `calibrated`, with the error of the checks.
        """
        for nodes, row in self.best().items():
            found, bound = row.projection, self.at_most_s
            if found is not None and bound is not None and _times(found)[how] <= bound:
                return nodes
        return None


def _rate(row: ProjectionRow) -> float:
    return 0.0 if row.projection is None else row.projection.tokens_per_s.likely


def _times(projection: Projection) -> dict[str, float]:
    time = projection.seconds_for_20m_tokens
    return {"likely": time.likely, "worst": time.worst, "calibrated": time.likely * (1.0 + CALIBRATED_ERROR)}


def table(answer: ProjectionAnswer) -> str:
    """The answer for people."""
    percent = f"{100 * CALIBRATED_ERROR:.3g} %"
    head = (
        "nodes", "GPUs", "layout", "batch", "GiB", "tokens/s (ends of the inputs)", "s for 20M tokens", f"± {percent}",
    )  # fmt: skip
    rows = [head, *(_cells(row) for row in answer.best().values() if row.projection is not None)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = [answer.title, ""]
    if len(rows) > 1:
        padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows)
        lines += ["  ".join(cells).rstrip() for cells in padded]
    lines += [_refusal(row, answer) for row in answer.best().values() if row.projection is None]
    lines += ["", *_verdict(answer), "", "Rests on:", *(f"- {each}" for each in answer.assumptions)]
    return "\n".join(lines) + "\n"


def _refusal(row: ProjectionRow, answer: ProjectionAnswer) -> str:
    more = sum(other.nodes == row.nodes for other in answer.rows) - 1
    others = f" (and {more} other layouts)" if more else ""
    return f"{counted(row.nodes, 'node')}: refused: {row.refused}{others}"


def _cells(row: ProjectionRow) -> tuple[str, ...]:
    assert row.projection is not None
    assert row.memory is not None
    layout, rate = row.projection.layout, row.projection.tokens_per_s
    time, calibrated = row.projection.seconds_for_20m_tokens, row.projection.calibrated(CALIBRATED_ERROR)
    return (
        str(row.nodes), str(layout.gpus), str(layout), str(layout.global_batch), f"{row.memory.total:.0f}",
        f"{rate.likely:.0f} ({rate.worst:.0f} to {rate.best:.0f})",
        f"{time.likely:.0f} ({time.best:.0f} to {time.worst:.0f})",
        f"{20e6 / calibrated.best:.0f} to {20e6 / calibrated.worst:.0f} s",
    )  # fmt: skip


def _verdict(answer: ProjectionAnswer) -> Iterator[str]:
    if answer.at_most_s is None:
        yield "You gave no bound on the time for 20 million tokens."
        return
    words = {
        "likely": "by the middle",
        "worst": "with the whole band of the inputs",
        "calibrated": "with the largest error of the published checks",
    }
    yield f"Fewest of these nodes for at most {answer.at_most_s:g} s:"
    for how, meaning in words.items():
        nodes = answer.smallest(how)
        yield f"  {'none' if nodes is None else nodes} {meaning}"


def document(answer: ProjectionAnswer) -> dict[str, Any]:
    """Everything as plain data: inputs, every row with its terms at each end, what it rests on."""
    return {
        "title": answer.title,
        "inputs": dict(answer.inputs),
        "assumptions": list(answer.assumptions),
        "calibrated_error": CALIBRATED_ERROR,
        "memory_gib": answer.memory_gib,
        "at_most_s": answer.at_most_s,
        "fewest_nodes": {how: answer.smallest(how) for how in ("likely", "worst", "calibrated")},
        "rows": [_plain(row) for row in answer.rows],
    }


def _plain(row: ProjectionRow) -> dict[str, Any]:
    plain: dict[str, Any] = {"nodes": row.nodes, "refused": row.refused}
    if row.memory is not None:
        plain["memory_gib"] = {**asdict(row.memory), "total": row.memory.total}
    if row.projection is not None:
        found = row.projection
        more = {"gpus": found.layout.gpus, "global_batch": found.layout.global_batch}
        plain["layout"] = {**found.layout.plain, **more}
        plain["terms_s"] = {end: dict(terms) for end, terms in found.terms.items()}
        plain["tokens_per_s"] = asdict(found.tokens_per_s)
        plain["tokens_per_s_calibrated"] = asdict(found.calibrated(CALIBRATED_ERROR))
        plain["seconds_for_20m_tokens"] = asdict(found.seconds_for_20m_tokens)
    return plain
