"""Foreign text, made harmless for terminals and reports."""

import re

# What a terminal would obey. What is shortened at its end is one, too.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*(?:[@-~]|$)"  # colours, cursor movements
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c|$)"  # titles, device control
    r"|\x1b[ -/]*[0-~]"
)
# Control characters but tab and line feed, marks of the direction of writing, and codes that XML does not allow.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def harmless(text: str) -> str:
    """A text without control sequences: control characters are written as escapes, as in Python."""
    if text.isprintable():  # as nearly all are; no control character is printable
        return text
    plain = _ESCAPES.sub("", text.replace("\r\n", "\n"))
    return _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), plain)
