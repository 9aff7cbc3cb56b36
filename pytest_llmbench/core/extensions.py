"""Engines, checks, recipes and the like by name: ours and those of other packages come in through the same door.

An installed package announces what it brings in its entry points, one group for each kind. A `conftest.py` or a plugin
lends what it defines for one session. Listing names imports nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import Distribution, EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from pytest_llmbench.core.errors import ConfigError, unknown

_OURS = "pytest-llmbench"
_CHECKOUT = Path(__file__).parents[2]

T = TypeVar("T")


class ExtensionError(ConfigError):
    """An extension that is there by name and cannot be used; sessions that do not need it can go on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Claim:
    """A claim to a name.

    Attributes:
        source: the claimant, for people.
        ours: whether it is this package.
        load: gives the thing itself.
    """

    source: str
    ours: bool
    load: Callable[[], object]


class Extensions(Generic[T]):
    """All extensions of one kind.

    Args:
        kind: a single one of them, for people: `engine`.
        group: the group of entry points that announces them, without `pytest_llmbench.`.
        accept: makes one of what an entry point of some name stands for; raises ConfigError where that is something
            else.
    """

    def __init__(self, kind: str, group: str, accept: Callable[[str, object], T]) -> None:
        self.kind = kind
        self._group = f"pytest_llmbench.{group}"
        self._accept = accept
        self._lent: dict[str, _Claim] = {}
        self._loaded: dict[str, T | ExtensionError] = {}

    def names(self) -> list[str]:
        """Every name: ours first, then those of other packages, then what was lent.

        Raises:
            ConfigError: the installation of this package is older than its code.
        """
        return list(dict.fromkeys((*self._installed, *self._lent)))

    def load(self, name: str) -> T:
        """Import the extension of that name, the first time it is asked for.

        Raises:
            ConfigError: there is none.
            ExtensionError: it cannot be imported, is not what it should be, or two packages claim its name.
        """
        if name not in self._loaded:
            if name not in self.names():
                raise ConfigError("; ".join([unknown(self.kind, name, self.usable()), *self.broken().values()]))
            try:
                self._loaded[name] = self._sound(name)
            except ExtensionError as error:
                self._loaded[name] = error
        found = self._loaded[name]
        if isinstance(found, ExtensionError):
            raise found
        return found

    def usable(self) -> dict[str, T]:
        """All that can be used, by name."""
        broken = self.broken()
        return {name: self.load(name) for name in self.names() if name not in broken}

    def broken(self) -> dict[str, str]:
        """The reasons why extensions of others cannot be used, by name; all of theirs are imported to know it."""
        return {name: str(why) for name in self.names() if (why := self._failure(name)) is not None}

    def is_ours(self, name: str) -> bool:
        """Whether this package alone brings it."""
        return all(claim.ours for claim in self._claims(name))

    def lend(self, given: T | type[T]) -> None:
        """Have a thing, or a class that makes it, found by its name until all is taken back.

        Raises:
            ExtensionError: it has no name, or something else of that name was lent before.
        """
        thing: Any = given() if isinstance(given, type) else given
        source = f"module {type(thing).__module__} of this session"
        name = getattr(thing, "name", None)
        if not isinstance(name, str):
            raise ExtensionError(f"{self.kind} {thing!r} of {source} has no `name`")
        if name in self._lent:
            first = self._lent[name].source
            raise ExtensionError(f"{self.kind} {name!r} comes from both {first} and {source}: rename one")
        self._lent[name] = _Claim(source=source, ours=False, load=lambda: thing)
        self._loaded.pop(name, None)

    def take_back(self) -> None:
        """Forget what was lent."""
        for name in self._lent:
            self._loaded.pop(name, None)
        self._lent.clear()

    @cached_property
    def _installed(self) -> Mapping[str, list[_Claim]]:
        """Claims of the installed packages, by name."""
        found: dict[str, list[_Claim]] = {}
        for entry in sorted(_announced().select(group=self._group), key=_rank):
            found.setdefault(entry.name, []).append(_claim(entry))
        if not any(claim.ours for claims in found.values() for claim in claims):
            raise ConfigError(
                f"the installation of pytest-llmbench announces no {self.kind}: it is older than its code in "
                f"{_CHECKOUT}; run `pip install -e {_CHECKOUT}` again"
            )
        return found

    def _failure(self, name: str) -> ExtensionError | None:
        if self.is_ours(name):
            return None
        try:
            self.load(name)
        except ExtensionError as error:
            return error
        return None

    def _claims(self, name: str) -> list[_Claim]:
        lent = [self._lent[name]] if name in self._lent else []
        return [*self._installed.get(name, ()), *lent]

    def _sound(self, name: str) -> T:
        claim, *others = self._claims(name)
        what = f"{self.kind} {name!r} of {claim.source}"
        if others:
            raise ExtensionError(
                f"{self.kind} {name!r} comes from both {claim.source} and {others[0].source}: uninstall one of them, "
                "or have it renamed"
            )
        try:
            thing = claim.load()
        except (Exception, SystemExit) as error:  # whatever the module of somebody else does
            cure = f"run `pip install -e {_CHECKOUT}` again" if claim.ours else "repair or uninstall it"
            raise ExtensionError(f"{what} cannot be imported: {type(error).__name__}: {error}; {cure}") from error
        try:
            return self._accept(name, thing)
        except ConfigError as error:
            raise ExtensionError(f"{what} cannot be used: {error}") from error


def named(protocol: type) -> Callable[[str, object], Any]:
    """Accept what has all of a protocol, its own name among it."""

    def accept(name: str, thing: object) -> object:
        wanted = (*protocol.__annotations__, *vars(protocol))
        lacking = [f"`{each}`" for each in wanted if not each.startswith("_") and not hasattr(thing, each)]
        if lacking:
            raise ConfigError(f"it has no {', '.join(lacking)}")
        own: str = thing.name  # type: ignore[attr-defined]  # the protocol has it
        if own != name:
            raise ConfigError(f"it calls itself {own!r}")
        return thing

    return accept


def _claim(entry: EntryPoint) -> _Claim:
    def load() -> object:
        found = entry.load()
        thing = found[entry.name] if isinstance(found, Mapping) else found
        return thing() if isinstance(thing, type) else thing

    package, version = _package_of(entry.dist)
    return _Claim(source=f"{package} {version} ({entry.value})", ours=package == _OURS, load=load)


def _rank(entry: EntryPoint) -> tuple[bool, str, str]:
    """Ours first, then others by package; each package's by name, as those who build packages keep no order."""
    package, _ = _package_of(entry.dist)
    return package != _OURS, package, entry.name


@cache
def _package_of(distribution: Distribution | None) -> tuple[str, str]:
    """Name and version, which take a file to read."""
    return (distribution.name, distribution.version) if distribution is not None else ("an unnamed package", "?")


@cache
def _announced() -> Any:  # EntryPoints, which have another type in Python 3.11
    """Read the entry points of all installed packages, once for all kinds."""
    return entry_points()
