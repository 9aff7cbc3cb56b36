"""Prose lint: finds sentences that a native reader has to decode, in documents, docstrings and messages.

    python tools/prose.py README.md docs pytest_llmbench     exits with 1 if a sentence has to change
    python tools/prose.py --figures docs                     counts by file, and their sum

A pattern is a habit that makes text hard to read, with the way to say it instead. Code and links are
left out.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Pages that lead a reader by the hand; at least this share of their sentences says "you", "your" or is an order.
GUIDES = ("docs/tutorial.md", "docs/install.md", "docs/ci.md", "docs/how-to/", "docs/extend/")
YOU_AT_LEAST = 0.15


@dataclass(frozen=True, slots=True)
class Pattern:
    """A habit that makes sentences hard to read.

    Attributes:
        name: for the report.
        regex: finds it in a sentence, in which code is `x`.
        instead: how to say it.
    """

    name: str
    regex: re.Pattern[str]
    instead: str


def _pattern(name: str, regex: str, instead: str) -> Pattern:
    return Pattern(name, re.compile(regex, re.IGNORECASE), instead)


# A clause that has a noun before it ("the check that ...") is fine, and so is a question.
PATTERNS = (
    _pattern(
        "what-clause",
        r"^(what|whatever|who|whoever|how (far|surely))\b[^?]*$",
        "name the noun: `What was not measured ...` is `An unmeasured check ...`",
    ),
    _pattern(
        "is-no",
        r"(?<!there )\b(is|are|was|were|be|been) (no|(?-i:none)|nobody|nothing|nowhere)\b"
        r"(?! (longer|more|less|fewer)\b)",
        "`is not a`, `must be`, or a verb: `x is no number` is `x must be a number`",
    ),
    _pattern("nobody", r"\b(nobody|somebody|nowhere|whoever|no one)\b", "name the person or the program"),
    _pattern(
        "talks",
        r"\b(vouch(es|ed)?|accus(e|es|ed)|acquit(s|ted)?|promis(e|es|ed)"
        r"|(is|are|was|were|be) (said|told|looked for|held against))\b",
        "reports, lists, shows, is flagged, is cleared, is expected; and who does it",
    ),
    _pattern("leftover", r"^(?-i:Of|Besides|As for|Beside)\b(?! course)", "begin with the subject"),
    _pattern(
        "german",
        r"\b(beside|besides|anew|thrice|in (the )?place of|so many|held against|as yet|whereof"
        r"|(got|goes|comes|knows|says|said|tells) not|belongs? into|is to be (had|seen)|in earnest|take leave)\b",
        "next to, again, instead of, as many as, compared with, yet",
    ),
)

_YOU = re.compile(r"\b(you|your|yours|yourself)\b", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<=[.!?:;])[\"')*_]*\s+(?=[\"'(*_`A-Z0-9])")
_CODE = re.compile(r"`+[^`]*`+")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence with its place.

    Attributes:
        prose: it stands in a paragraph or a list, not in a heading or a table.
    """

    path: Path
    line: int
    text: str
    prose: bool = True


def sentences(path: Path, line: int, text: str, *, prose: bool = True) -> Iterator[Sentence]:
    """Split a paragraph into sentences; code becomes `x`, a link its words."""
    plain = _CODE.sub("x", _LINK.sub(r"\1", text))
    start = 0
    for end in [*(match.end() for match in _SENTENCE_END.finditer(plain)), len(plain)]:
        sentence = plain[start:end]
        words = " ".join(sentence.split()).strip("*_ \"'(>")
        if re.search(r"[a-zA-Z]{2}", words):
            yield Sentence(path, line + plain[:start].count("\n"), words, prose)
        start = end


def of_document(path: Path) -> Iterator[Sentence]:
    """Sentences of a Markdown file: paragraphs, list items, headings and table cells; no code, no comments."""
    paragraph: list[str] = []
    first, fence = 1, ""
    for number, line in enumerate([*path.read_text(encoding="utf-8").splitlines(), ""], start=1):
        mark = re.match(r"\s*(`{3,})", line)
        if mark and (not fence or mark[1] == fence):
            fence = "" if fence else mark[1]
        starts = re.match(r"\s*([-*] |\d+\. |#+ |\||<!--|$)", line)
        if fence or mark or starts:
            yield from sentences(path, first, "\n".join(paragraph))
            paragraph, first = [], number
        if fence or mark or not line.strip() or line.lstrip().startswith("<!--"):
            continue
        if line.lstrip().startswith("|"):
            for cell in re.split(r"(?<!\\)\|", line):
                yield from sentences(path, number, cell, prose=False)
        elif line.startswith("#"):
            yield from sentences(path, number, line.lstrip("# "), prose=False)
        else:
            if not paragraph:
                first = number
            paragraph.append(re.sub(r"^\s*([-*]|\d+\.) ", "", line))


def of_module(path: Path) -> Iterator[Sentence]:
    """Sentences of a module's docstrings and of its other texts, in which what is filled in becomes `x`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False):
            constant = node.body[0].value  # type: ignore[attr-defined]
            inside.add(id(constant))
            yield from _of_docstring(path, constant.lineno, constant.value)
        elif isinstance(node, ast.JoinedStr):
            parts = (str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)
            inside.update(id(part) for part in ast.walk(node))
            yield from _of_message(path, node.lineno, "".join(parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield from _of_message(path, node.lineno, node.value)


def _of_docstring(path: Path, line: int, text: str) -> Iterator[Sentence]:
    for offset, paragraph in _paragraphs(text):
        yield from sentences(path, line + offset, paragraph)


def _paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs of a docstring, with the line of each; an entry (`name: meaning`) is a paragraph."""
    block: list[str] = []
    first = 0
    for number, line in enumerate([*text.splitlines(), ""]):
        entry = re.match(r"\s+[\w`*, |.-]+: |\s*(Attributes|Args|Raises|Returns|Yields):$", line)
        if (entry or not line.strip()) and block:
            yield first, "\n".join(block)
            block = []
        if not block:
            first = number
        if line.strip():
            block.append(re.sub(r"^\s+[\w`*, |.-]+: ", "", line))


def _of_message(path: Path, line: int, text: str) -> Iterator[Sentence]:
    if text.count(" ") >= 2:
        yield from sentences(path, line, text)


def files_in(places: list[Path]) -> list[Path]:
    """The files given, and every document and module of the folders given."""
    return [
        path
        for place in places
        for path in ([place] if place.is_file() else sorted(place.rglob("*")))
        if path.suffix in {".md", ".py"}
    ]


def of_file(path: Path) -> list[Sentence]:
    """Every sentence of a document or a module."""
    return list(of_document(path) if path.suffix == ".md" else of_module(path))


def faults(sentence: Sentence) -> Iterator[Pattern]:
    """Every pattern that a sentence shows."""
    for pattern in PATTERNS:
        if pattern.regex.search(sentence.text):
            yield pattern


def is_guide(path: Path) -> bool:
    """Whether a page leads its reader by the hand; a list of pages does not."""
    return path.is_relative_to(ROOT) and path.relative_to(ROOT).as_posix().startswith(GUIDES) and path.stem != "index"


def you_share(found: list[Sentence]) -> float:
    """The share of sentences that speak to the reader."""
    prose = [sentence for sentence in found if sentence.prose]
    return sum(bool(_YOU.search(sentence.text)) for sentence in prose) / max(1, len(prose))


def print_figures(files: list[Path]) -> None:
    """Print how many sentences there are, how many have which fault, and the share that speaks to the reader."""
    everything: list[Sentence] = []
    for path in files:
        found = of_file(path.resolve())
        everything += found
        hits = sum(1 for sentence in found for _ in faults(sentence))
        print(f"{len(found):6d} sentences, {hits:4d} faults, you {you_share(found):4.0%}  {path}")
    print(f"{len(everything):6d} sentences, you {you_share(everything):4.0%}  in all")
    for pattern in PATTERNS:
        hits = sum(1 for sentence in everything if pattern.regex.search(sentence.text))
        print(f"{hits:6d} {hits / max(1, len(everything)):5.1%}  {pattern.name}")


def main(arguments: list[str] | None = None) -> int:
    """Report every sentence that has to change; 1 if there is one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("places", nargs="+", type=Path, help="files, or folders of them")
    parser.add_argument("--figures", action="store_true", help="print counts by file, and exit with 0")
    given = parser.parse_args(arguments)
    files = files_in(given.places)
    if given.figures:
        print_figures(files)
        return 0
    count = 0
    for path in files:
        found = of_file(path.resolve())
        for sentence in found:
            for pattern in faults(sentence):
                count += 1
                print(f"{path}:{sentence.line}: {pattern.name}: {sentence.text}\n    {pattern.instead}")
        share = you_share(found)
        if is_guide(path.resolve()) and share < YOU_AT_LEAST:
            count += 1
            print(f"{path}:1: you: {share:.0%} of its sentences speak to the reader, {YOU_AT_LEAST:.0%} are needed")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
