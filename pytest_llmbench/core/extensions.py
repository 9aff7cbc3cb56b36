"""Engines, checks, recipes and the like by name, of this package and of others.

An installed package announces them in its entry points, one group for each kind. A `conftest.py` or a plugin lends
those that it defines for one session. Listing names imports nothing.
"""

from collections.abc import Callable, Mapping
from functools import cache, cached_property, partial
from importlib.metadata import Distribution, EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from pytest_llmbench.core.errors import ConfigError, unknown

_OURS = "pytest-llmbench"
_CHECKOUT = Path(__file__).parents[2]

T = TypeVar("T")


class ExtensionError(ConfigError):
    """An extension that is known by name and unusable. Sessions that do without it go on."""


class _Claim(NamedTuple):
    """A claim to a name: the claimant for people, whether it is this package, and how the extension is loaded."""

    source: str
    ours: bool
    load: Callable[[], object]


class Extensions(Generic[T]):
    """All extensions of one kind.

    Args:
        kind: a single one of them, for people: `engine`.
        group: the group of entry points that announces them, without `pytest_llmbench.`.
        accept: makes an extension of the object that an entry point names; raises ConfigError for any other object.
    """

    def __init__(self, kind: str, group: str, accept: Callable[[str, object], T]) -> None:
        self.kind = kind
        self._group = f"pytest_llmbench.{group}"
        self._accept = accept
        self._lent: dict[str, _Claim] = {}
        self._loaded: dict[str, T | ExtensionError] = {}

    def names(self) -> list[str]:
        """Every name: ours first, then those of other packages, then those lent for the session.

        Raises ConfigError if the installation of this package is older than its code.
        """
        return list(dict.fromkeys((*self._installed, *self._lent)))

    def load(self, name: str) -> T:
        """Import the extension of that name, the first time it is asked for.

        Raises ConfigError if the name is unknown, and ExtensionError if its object cannot be imported or is of another
        type, or two packages claim the name.
        """
        if name not in self.names():
            raise ConfigError("; ".join([unknown(self.kind, name, self.usable()), *self.broken().values()]))
        if isinstance(extension := self._load(name), ExtensionError):
            raise extension
        return extension

    def usable(self) -> dict[str, T]:
        """All usable extensions by name."""
        broken = self.broken()
        return {name: self.load(name) for name in self.names() if name not in broken}

    def broken(self) -> dict[str, str]:
        """The reasons why extensions of other packages cannot be used, by name. It imports all of these."""
        others = [name for name in self.names() if not self.is_ours(name)]
        return {name: str(error) for name in others if isinstance(error := self._load(name), ExtensionError)}

    def is_ours(self, name: str) -> bool:
        """True if this package alone brings it."""
        return all(claim.ours for claim in self._claims(name))

    def lend(self, given: T | type[T]) -> None:
        """Add an extension, or a class that makes it, under its own name until `take_back`.

        Raises ExtensionError if it lacks a name, or another one was lent under it.
        """
        thing: Any = given() if isinstance(given, type) else given
        source, name = f"module {type(thing).__module__} of this session", getattr(thing, "name", None)
        if not isinstance(name, str):
            raise ExtensionError(f"{self.kind} {thing!r} of {source} has no `name`")
        if (first := self._lent.get(name)) is not None:
            raise ExtensionError(f"{self.kind} {name!r} comes from both {first.source} and {source}: rename one")
        self._lent[name] = _Claim(source, ours=False, load=lambda: thing)
        self._loaded.pop(name, None)

    def take_back(self) -> None:
        """Forget all lent extensions."""
        for name in self._lent:
            self._loaded.pop(name, None)
        self._lent.clear()

    @cached_property
    def _installed(self) -> Mapping[str, list[_Claim]]:
        """Claims of the installed packages, by name: ours first, then by package and name."""
        claims: dict[str, list[_Claim]] = {}
        entries = ((*_package(entry.dist), entry) for entry in _entry_points().select(group=self._group))
        for package, version, entry in sorted(entries, key=lambda row: (row[0] != _OURS, row[0], row[1], row[2].name)):
            source = f"{package} {version} ({entry.value})"
            claims.setdefault(entry.name, []).append(_Claim(source, package == _OURS, partial(_load_entry, entry)))
        if not any(several[0].ours for several in claims.values()):
            raise ConfigError(
                f"the installation of pytest-llmbench announces no {self.kind}: it is older than its code in "
                f"{_CHECKOUT}; run `pip install -e {_CHECKOUT}` again"
            )
        return claims

    def _claims(self, name: str) -> list[_Claim]:
        lent = [self._lent[name]] if name in self._lent else []
        return [*self._installed.get(name, ()), *lent]

    def _load(self, name: str) -> T | ExtensionError:
        if name not in self._loaded:
            self._loaded[name] = self._import(name)
        return self._loaded[name]

    def _import(self, name: str) -> T | ExtensionError:
        claim, *others = self._claims(name)
        what = f"{self.kind} {name!r} of {claim.source}"
        if others:
            return ExtensionError(
                f"{self.kind} {name!r} comes from both {claim.source} and {others[0].source}: uninstall one of them, "
                "or have it renamed"
            )
        try:
            return self._accept(name, claim.load())
        except ConfigError as error:
            return ExtensionError(f"{what} cannot be used: {error}")
        except (Exception, SystemExit) as error:  # noqa: BLE001 - an import of others may raise anything
            cure = f"run `pip install -e {_CHECKOUT}` again" if claim.ours else "repair or uninstall it"
            return ExtensionError(f"{what} cannot be imported: {type(error).__name__}: {error}; {cure}")


def named(protocol: type) -> Callable[[str, object], Any]:
    """Accept an object with all members of a protocol, under its own name."""

    def accept(name: str, thing: object) -> object:
        wanted = (*protocol.__annotations__, *vars(protocol))
        lacking = [f"`{member}`" for member in wanted if not member.startswith("_") and not hasattr(thing, member)]
        if lacking:
            raise ConfigError(f"it has no {', '.join(lacking)}")
        own: str = thing.name  # type: ignore[attr-defined]  # the protocol has it
        if own != name:
            raise ConfigError(f"it calls itself {own!r}")
        return thing

    return accept


def _load_entry(entry: EntryPoint) -> object:
    loaded = entry.load()
    thing = loaded[entry.name] if isinstance(loaded, Mapping) else loaded
    return thing() if isinstance(thing, type) else thing


@cache
def _package(distribution: Distribution | None) -> tuple[str, str]:
    """Name and version, which take a file to read."""
    return (distribution.name, distribution.version) if distribution is not None else ("an unnamed package", "?")


@cache
def _entry_points() -> Any:  # EntryPoints, which have another type in Python 3.11
    """The entry points of all installed packages, read once for all kinds."""
    return entry_points()
