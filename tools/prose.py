"""Prose lint: finds sentences that a native reader has to decode.

    python tools/prose.py                     exits with 1 if a sentence has to change, or a goal is missed
    python tools/prose.py README.md docs      the same of some files
    python tools/prose.py --figures           counts by file, their sum, and each goal with its figure

It reads documents, docstrings, comments and messages, and comments and texts of shell scripts and YAML files, but only
comments of tests and benchmarks. A pattern is a habit that makes text hard to read, with the way to say it instead.
Code and links are left out.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml

ROOT = Path(__file__).parents[1]
PLACES = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs",
    "pytest_llmbench",
    "suites",
    "tools",
    "tests",
    "benchmarks",
)
# Pages that lead a reader by the hand; at least this share of their sentences says "you", "your" or is an order.
GUIDES = ("docs/tutorial.md", "docs/install.md", "docs/how-to/", "docs/extend/")
YOU_AT_LEAST = 0.15
WHAT_BELOW = 0.02
# The largest shares of the sentences of docstrings and comments that deny something, or in which things speak or know.
# They may only fall: the goal for negations is 5 % and 8 %.
NEGATIONS = {"docstring": 0.055, "comment": 0.095}
TALKING = {"docstring": 0.005, "comment": 0.015}


Place = Literal["prose", "heading", "cell", "docstring", "comment"]


@dataclass(frozen=True, slots=True)
class Pattern:
    """A habit that makes sentences hard to read.

    Attributes:
        name: for the report.
        regex: finds it in a sentence, in which code is `x`.
        instead: a way to say it plainly.
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
        r"^(what|whatever|who|whoever)\b[^?]*$",
        "name the noun: `What was not measured ...` is `An unmeasured check ...`",
    ),
    _pattern(
        "where-clause",
        r"^(where|which|why(?! it matters)|how (far|surely)|when(?=[^,]*$))\b[^?]*$",
        "name the noun: `Where the logs are` is `Folder of the logs`; a condition begins with `If`",
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

_KEIN = re.compile(r"(?<!here )\b(is|are) (no|none)\b(?! (longer|more|less|fewer)\b)")
_NEGATION = re.compile(r"\b(not?|never|(?-i:none)|nothing|nobody|nowhere|neither|nor|cannot)\b|n't\b", re.IGNORECASE)
_TALK = re.compile(r"\b(say|says|said|saying|tell|tells|told|know|knows)\b", re.IGNORECASE)
_YOU = re.compile(r"\b(you|your|yours|yourself)\b", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<=[.!?:;])[\"')*_]*\s+(?=[\"'(*_`A-Z0-9])")
_CODE = re.compile(r"`+[^`]*`+")
# Comments of Python; `tokenize` takes ten times as long.
_STRING_OR_COMMENT = re.compile(
    r'#[^\n]*|"""(?:\\.|[^\\])*?"""|\'\'\'(?:\\.|[^\\])*?\'\'\'|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL
)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence with its place.

    Attributes:
        place: in the file; a heading may be `Where sources disagree`.
    """

    path: Path
    line: int
    text: str
    place: Place = "prose"


def sentences(path: Path, line: int, text: str, place: Place = "prose") -> Iterator[Sentence]:
    """Split a paragraph into sentences; code becomes `x`, a link its words."""
    plain = _CODE.sub("x", _LINK.sub(r"\1", text))
    start = 0
    for end in [*(match.end() for match in _SENTENCE_END.finditer(plain)), len(plain)]:
        sentence = plain[start:end]
        words = " ".join(sentence.split()).strip("*_ \"'(>")
        if re.search(r"[a-zA-Z]{2}", words):
            yield Sentence(path, line + plain[:start].count("\n"), words, place)
        start = end


def of_document(path: Path) -> Iterator[Sentence]:
    """Sentences of a Markdown file: paragraphs, list items, headings and table cells."""
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
                yield from sentences(path, number, cell, "cell")
        elif line.startswith("#"):
            yield from sentences(path, number, line.lstrip("# "), "heading")
        else:
            if not paragraph:
                first = number
            paragraph.append(re.sub(r"^\s*([-*]|\d+\.) ", "", line))


def of_module(path: Path) -> Iterator[Sentence]:
    """Sentences of a module's docstrings, comments and other texts, in which what is filled in becomes `x`."""
    text = path.read_text(encoding="utf-8")
    yield from _of_comments(path, text)
    tree = ast.parse(text)
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


def _of_comments(path: Path, text: str) -> Iterator[Sentence]:
    """Comments on lines of their own are one text; one behind code is a text by itself."""
    block: list[str] = []
    last, line, begin = 0, 1, 0
    for match in _STRING_OR_COMMENT.finditer(text):
        if match[0][0] != "#":
            continue
        line += text.count("\n", begin, match.start())
        begin = match.start()
        alone = not text[text.rfind("\n", 0, begin) + 1 : begin].strip()
        comment = re.sub(r"^#[:!]?\s*", "", match[0]).partition("  #")[0]
        if block and (not alone or line != last + 1):
            yield from sentences(path, last - len(block) + 1, "\n".join(block), "comment")
            block = []
        if re.match(r"(noqa|fmt|type|ruff|pragma|isort|mypy|/)\b", comment):
            continue
        if alone:
            block, last = [*block, comment], line
        else:
            yield from sentences(path, line, comment, "comment")
    if block:
        yield from sentences(path, last - len(block) + 1, "\n".join(block), "comment")


def _of_docstring(path: Path, line: int, text: str) -> Iterator[Sentence]:
    for offset, paragraph in _paragraphs(text):
        yield from sentences(path, line + offset, paragraph, "docstring")


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
    if text.count(" ") >= 2 and r"\b" not in text:
        yield from sentences(path, line, text)


def of_script(path: Path) -> Iterator[Sentence]:
    """Sentences of the comments of a shell script or a YAML file; of the latter, its texts as well."""
    text = path.read_text(encoding="utf-8")
    block: list[str] = []
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        comment = re.match(r"\s*#(?!!|SBATCH)(?: ?shellcheck .*)? ?(.*)", line)
        if comment and comment[1] and not comment[1].startswith("  "):
            block.append(comment[1])
        elif block:
            yield from sentences(path, number - len(block), "\n".join(block))
            block = []
    if path.suffix == ".yaml":
        for node in _scalars(yaml.compose(text)).values():
            yield from _of_message(path, node.start_mark.line + 1, node.value)


def _scalars(node: yaml.Node | None) -> dict[int, yaml.ScalarNode]:
    """The values of a document by their place; one that aliases repeat is there once."""
    if isinstance(node, yaml.ScalarNode):
        return {node.start_mark.index: node}
    inner = node.value if isinstance(node, yaml.CollectionNode) else []
    values = (each[1] if isinstance(each, tuple) else each for each in inner)
    return {index: scalar for value in values for index, scalar in _scalars(value).items()}


# Folders whose comments are read, and nothing else so far.
COMMENTS_ONLY = ("tests", "benchmarks")
# Comments of the package in which a pattern is found. Their number may only fall.
COMMENTS_TO_MEND = 80

READERS = {".md": of_document, ".py": of_module, ".sh": of_script, ".yaml": of_script}


def files_in(places: list[Path]) -> list[Path]:
    """The files given, and every file of the folders given that holds prose."""
    return [
        path
        for place in places
        for path in ([place] if place.is_file() else sorted(place.rglob("*")))
        if path.suffix in READERS
    ]


def of_file(path: Path) -> list[Sentence]:
    """Every sentence of a file that is read."""
    if in_folder(path, *COMMENTS_ONLY):
        return list(_of_comments(path, path.read_text(encoding="utf-8"))) if path.suffix == ".py" else []
    return list(READERS[path.suffix](path))


def in_folder(path: Path, *folders: str) -> bool:
    """True for a file of one of these folders of the project."""
    return any(path.is_relative_to(ROOT / folder) for folder in folders)


def faults(sentence: Sentence) -> Iterator[Pattern]:
    """Every pattern that a sentence shows."""
    for pattern in PATTERNS:
        if pattern.regex.search(sentence.text) and (pattern.name, sentence.place) != ("where-clause", "heading"):
            yield pattern


def is_guide(path: Path) -> bool:
    """True for a page that leads its reader by the hand, unlike a list of pages."""
    return path.is_relative_to(ROOT) and path.relative_to(ROOT).as_posix().startswith(GUIDES) and path.stem != "index"


def you_share(found: list[Sentence]) -> float:
    """The share of sentences that speak to the reader."""
    prose = [sentence for sentence in found if sentence.place == "prose"]
    return sum(bool(_YOU.search(sentence.text)) for sentence in prose) / max(1, len(prose))


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on a whole set of files, by a count of its own: a change of a pattern cannot loosen it.

    Attributes:
        name: for the report.
        figure: a share.
        met: whether it is within its bound.
    """

    name: str
    figure: float
    met: bool


def goals(found: list[Sentence]) -> list[Goal]:
    """The goals on these sentences; those of pages that lead by the hand count for the one on `you`."""
    statements = [sentence.text for sentence in found if not sentence.text.endswith("?")]
    subjects = sum(bool(re.match(r"what\b.*\b(is|are|was|were)\b", text, re.IGNORECASE)) for text in statements)
    kein = sum(bool(_KEIN.search(text)) for text in statements)
    what, is_no = subjects / max(1, len(statements)), kein / max(1, len(statements))
    led = [sentence for sentence in found if is_guide(sentence.path)]
    you = you_share(led)
    return [
        Goal("sentences that begin with `What ... is`: under 2 %", what, what < WHAT_BELOW),
        Goal("sentences with `is no ...`: none", is_no, is_no == 0),
        Goal("sentences of tutorial and guides with `you`: at least 15 %", you, you >= YOU_AT_LEAST or not led),
        *(_goal_of_code(found, place, "deny something", _NEGATION, most) for place, most in NEGATIONS.items()),
        *(
            _goal_of_code(found, place, "have things that say, tell or know", _TALK, most)
            for place, most in TALKING.items()
        ),
    ]


def _goal_of_code(found: list[Sentence], place: str, habit: str, regex: re.Pattern[str], most: float) -> Goal:
    texts = [sentence.text for sentence in found if sentence.place == place]
    share = sum(bool(regex.search(text)) for text in texts) / max(1, len(texts))
    return Goal(f"{place}s that {habit}: at most {most:.1%}", share, share <= most)


def print_figures(found: dict[Path, list[Sentence]]) -> None:
    """Print how many sentences there are, how many have which fault, and the share that speaks to the reader."""
    everything = [sentence for of_one in found.values() for sentence in of_one]
    for path, of_one in found.items():
        hits = sum(1 for sentence in of_one for _ in faults(sentence))
        print(f"{len(of_one):6d} sentences, {hits:4d} faults, you {you_share(of_one):4.0%}  {path}")
    print(f"{len(everything):6d} sentences, you {you_share(everything):4.0%}  in all")
    names = [pattern.name for sentence in everything for pattern in faults(sentence)]
    for pattern in PATTERNS:
        hits = names.count(pattern.name)
        print(f"{hits:6d} {hits / max(1, len(everything)):5.1%}  {pattern.name}")
    for goal in goals(everything):
        print(f"{goal.figure:12.2%}  {goal.name}: {'met' if goal.met else 'MISSED'}")


def main(arguments: list[str] | None = None) -> int:
    """Report every sentence that has to change and every goal that is missed; 1 if there is one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    everywhere = [ROOT / place for place in PLACES]
    parser.add_argument("places", nargs="*", type=Path, default=everywhere, help="files, or folders of them")
    parser.add_argument("--figures", action="store_true", help="print counts by file and the goals, and exit with 0")
    given = parser.parse_args(arguments)
    found = {path: of_file(path.resolve()) for path in files_in(given.places)}
    if given.figures:
        print_figures(found)
        return 0
    count = 0
    later: list[str] = []
    for path, of_one in found.items():
        for sentence in of_one:
            for pattern in faults(sentence):
                report = f"{path}:{sentence.line}: {pattern.name}: {sentence.text}\n    {pattern.instead}"
                if sentence.place == "comment" and in_folder(path.resolve(), "pytest_llmbench"):
                    later.append(report)
                else:
                    count += 1
                    print(report)
        share = you_share(of_one)
        if is_guide(path.resolve()) and share < YOU_AT_LEAST:
            count += 1
            print(f"{path}:1: you: {share:.0%} of its sentences speak to the reader, {YOU_AT_LEAST:.0%} are needed")
    if len(later) > COMMENTS_TO_MEND:
        count += 1
        print(*later, f"{len(later)} comments of the package: at most {COMMENTS_TO_MEND}", sep="\n")
    for goal in goals([sentence for of_one in found.values() for sentence in of_one]):
        if not goal.met:
            count += 1
            print(f"{goal.figure:.2%}: {goal.name}")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
