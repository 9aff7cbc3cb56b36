"""The place of the XML that the user asked for: a new file replaces the old one in one step."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from pytest_llmbench.core.files import Replacement
from pytest_llmbench.plugin.pytest_private import LogXML

_XML = b"<?xml"


def is_special(logfile: str) -> bool:
    """Whether a report goes to a device or a pipe, which cannot be replaced: it is written there once."""
    path = Path(logfile)
    return path.exists() and not path.is_file()


def remove_earlier(path: Path) -> None:
    """Remove an XML file, and nothing that the user may have named by mistake."""
    with contextlib.suppress(OSError):  # it is written later, or the user is told then
        if path.is_file():
            with path.open("rb") as file:
                is_xml = file.read(len(_XML)) == _XML
            if is_xml:
                path.resolve().unlink()


@contextlib.contextmanager
def beside(writer: LogXML) -> Iterator[None]:
    """Have a writer write a new file, which then replaces its file; where that is a link, what the link leads to."""
    logfile = writer.logfile
    path = Path(logfile).resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    with Replacement(path, durable=True) as new:
        writer.logfile = os.fspath(new)
        try:
            yield
        finally:
            writer.logfile = logfile
