"""The type of a reader of a framework's log, and the look-up of readers by name."""

from collections.abc import Callable
from dataclasses import dataclass

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.extensions import Extensions, named
from pytest_llmbench.readers.items import EVERY_LINE, Claims, Needles, Parse
from pytest_llmbench.readers.log import no_claims


@dataclass(frozen=True, kw_only=True, slots=True)
class LogReader:
    """Reader of the logs of one framework.

    Attributes:
        name: the name under which it is registered.
        dialect: returns a parser for one log. The parser is called with each line in order, without a launcher's
            prefix; it raises `Unreadable` for a damaged step line.
        claims: returns the settings of the training that one line prints.
        needles: words of lines with items or claims; lines without them may be skipped. If empty, every line is read.
    """

    name: str
    dialect: Callable[[], Parse]
    claims: Claims = no_claims
    needles: Needles = EVERY_LINE


def _accept(name: str, thing: object) -> LogReader:
    if not isinstance(thing, LogReader):
        raise ConfigError("it is not a LogReader")
    reader: LogReader = named(LogReader)(name, thing)
    return reader


READERS: Extensions[LogReader] = Extensions("reader", "readers", _accept)
