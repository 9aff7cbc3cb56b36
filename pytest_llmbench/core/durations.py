"""Wall-clock limits in Slurm's notation."""

import re

from pytest_llmbench.core.errors import ConfigError

# Begins the message about a run that its session ended; the limit follows.
CUT_OFF = "ended at its time limit of "
_SLURM = re.compile(
    r"(?:(?P<days>\d{1,9})-(?P<dh>\d{1,9})(?::(?P<dm>\d{1,9})(?::(?P<ds>\d{1,9}))?)?"
    r"|(?P<h>\d{1,9}):(?P<hm>\d{1,9}):(?P<hs>\d{1,9})|(?P<m>\d{1,9})(?::(?P<s>\d{1,9}))?)",
    re.ASCII,
)


def parse_minutes(text: str) -> int:
    """Read `minutes`, `minutes:seconds`, `hours:minutes:seconds`, `days-hours[:minutes[:seconds]]`.

    The result is whole minutes, rounded up: Slurm's own granularity. Raises ConfigError for any other text, and for
    zero.
    """
    match = _SLURM.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f"{text!r} is not a time limit; write minutes, minutes:seconds, hours:minutes:seconds or days-hours"
        )
    part = {name: int(value or 0) for name, value in match.groupdict().items()}
    seconds = (
        ((part["days"] * 24 + part["dh"] + part["h"]) * 60 + part["dm"] + part["hm"] + part["m"]) * 60
        + part["ds"] + part["hs"] + part["s"]
    )  # fmt: skip
    if seconds == 0:
        raise ConfigError(f"a time limit of {text!r} leaves no time to run")
    return -(-seconds // 60)


def format_minutes(minutes: int) -> str:
    """Write whole minutes as Slurm prints them: `[days-]hours:minutes:00`."""
    days, rest = divmod(minutes, 24 * 60)
    hours, mins = divmod(rest, 60)
    return f"{f'{days}-' if days else ''}{hours:02d}:{mins:02d}:00"
