"""Build a reference of a recipe."""

from typing import Any

from pytest_llmbench.core.recipe.reference import Reference


def reference(
    statistic: str, at_least: str | None = None, at_most: str | None = None, *, name: str = "bound", **applies_to: Any
) -> Reference:
    """Build a reference of system "test", unless `applies_to` names another or a GPU."""
    where = applies_to if "gpu" in applies_to else {"system": "test", **applies_to}
    return Reference.model_validate({
        "name": name, "statistic": statistic, "at_least": at_least, "at_most": at_most,
        "why": "because", "source": "a document", "date": "2026-01-01", "applies_to": where,
    })  # fmt: skip
