"""Single values of nvidia-smi's XML, under whichever tag and in whichever words a driver version prints them."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

_NUMBER = re.compile(r"(\d+(?:\.\d+)?)(?:x|\s.*)?", re.ASCII | re.DOTALL)
_YES = {"yes", "enabled", "active", "true", "pending"}
_NO = {"no", "disabled", "not active", "false"}
_UNKNOWN = {"", "N/A", "Unknown", "Not Supported", "Not Available", "Not Applicable", "Insufficient Permissions"}
_GONE = "Requested functionality has been deprecated"
# What stands in place of a value where the driver has lost the GPU.
LOST = re.compile(r"\[?(GPU is lost|GPU requires reset|Unknown Error|ERR!)\]?", re.IGNORECASE)


def text(element: ET.Element, path: str) -> str | None:
    """The text of a tag; None where it is not there, or says that it is not known."""
    said = (element.findtext(path) or "").strip().strip("[]")
    return None if said in _UNKNOWN or said.startswith(_GONE) or LOST.fullmatch(said) else said


def number(element: ET.Element, *paths: str) -> float | None:
    """The number of the first of some tags that has one, whatever its unit."""
    found = (_NUMBER.fullmatch(text(element, path) or "") for path in paths)
    return next((float(match[1]) for match in found if match), None)


def flag(element: ET.Element, path: str) -> bool | None:
    """Whether a tag says yes; None where it says neither yes nor no."""
    said = (text(element, path) or "").lower()
    return True if said in _YES else False if said in _NO else None


def either(*flags: bool | None) -> bool | None:
    """Whether one of them is true; None where none is known."""
    known = [flag for flag in flags if flag is not None]
    return any(known) if known else None


def errors(gpu: ET.Element, path: str, word: str, old: str) -> float | None:
    """Add up the ECC errors of a kind over all memories; None where the GPU tells none, or loses one of those it has.

    Since Turing there is a counter for each kind of memory; before, `double_bit` and `single_bit` have a total.
    """
    total = number(gpu, f"{path}/{old}/total")
    if total is not None:
        return total
    tags = [element.tag for element in gpu.iterfind(f"{path}/*") if re.search(rf"(^|_){word}", element.tag)]
    counts = [number(gpu, f"{path}/{tag}") for tag in tags]
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None
