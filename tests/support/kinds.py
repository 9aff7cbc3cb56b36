"""The kinds of findings that each family of checks declares: the `Literal` types of its modules, named `...Kind`."""

import re
from importlib import import_module
from pathlib import Path
from typing import get_args

from pytest_llmbench.checks import findings as shared
from pytest_llmbench.judging.references import ReferenceKind

CHECKS = Path(shared.__file__).parent
SHARED = {*get_args(shared.SharedKind)}


def declared(family: str) -> tuple[str, ...]:
    """The kinds that a family declares, or the module `findings`; each once."""
    paths = (CHECKS / family).glob("*.py") if (CHECKS / family).is_dir() else [CHECKS / f"{family}.py"]
    kinds: dict[str, None] = {}
    for path in paths:
        for name in re.findall(r"^(\w+Kind) = Literal\[", path.read_text(encoding="utf-8"), re.MULTILINE):
            module = ".".join(path.relative_to(CHECKS).with_suffix("").parts)
            kinds |= dict.fromkeys(get_args(getattr(import_module(f"pytest_llmbench.checks.{module}"), name)))
    return tuple(kinds)


def references() -> tuple[str, ...]:
    """The kinds of findings about a reference."""
    return get_args(ReferenceKind)
