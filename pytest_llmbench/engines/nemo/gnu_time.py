"""Reader of the output of `/usr/bin/time`, and of the dates that scripts print around it.

    13.39user 53.30system 2:51.89elapsed 38%CPU (0avgtext+0avgdata 27828maxresident)k
    BEGIN_TRAINING: Mon Nov 16 10:06:25 UTC 2026

The totals are `elapsed_s` and, in Unix time, `begin_training` and `end_training`. A date whose zone is an abbreviation
other than UTC or GMT is ignored: the same letters mean several zones.
"""

import re
from collections.abc import Iterable
from datetime import UTC, datetime

from pytest_llmbench.readers.items import Failed, Item, Total

_TIME = re.compile(
    r"\d\.\d+user \d{1,12}\.\d+system "
    r"(?:(?P<hours>\d{1,6}):)?(?P<minutes>\d{1,2}):(?P<seconds>\d\d(?:\.\d+)?)elapsed",
    re.ASCII,
)
_DATE = re.compile(r"(BEGIN|END)_TRAINING *: *(\S.{0,60})", re.ASCII)
_FAILED = re.compile(r"Command (?:exited with non-zero status|terminated by signal) \d", re.ASCII)
_UTC = re.compile(r"\b(?:UTC|GMT)\b")
# As `date` prints it; the first with twelve hours, in some locales.
_FORMATS = ("%a %b %d %I:%M:%S %p UTC %Y", "%a %b %d %H:%M:%S UTC %Y")


NEEDLES = (b"elapsed", b"_TRAINING", b"Command ")


def parse(text: str) -> Iterable[Item]:
    """Read one line, as `items.Parse`; it yields totals and failures alone, and accepts every line."""
    if (match := _TIME.search(text)) and float(match["seconds"]) < 60.0 and int(match["minutes"]) < 60:
        minutes = 60 * int(match["hours"] or 0) + int(match["minutes"])
        yield Total("elapsed_s", 60 * minutes + float(match["seconds"]))
    if (match := _DATE.fullmatch(text.strip())) and (date := _date(match[2])) is not None:
        yield Total(f"{match[1].lower()}_training", date.timestamp())
    if _FAILED.match(text):
        yield Failed(text)


def _date(text: str) -> datetime | None:
    for form in _FORMATS:
        try:
            return datetime.strptime(_UTC.sub("UTC", text), form).replace(tzinfo=UTC)
        except ValueError:
            continue
    try:
        date = datetime.fromisoformat(text)
    except ValueError:
        return None
    return date if date.tzinfo is not None else None
