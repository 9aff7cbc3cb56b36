"""The scheme of executable documents catches what it is there to catch."""

from pathlib import Path

import pytest

from tests.docs.documents import Block, DocumentError, Reader, check_marks, commands, compare, needs_slurm, read_blocks


def follow(tmp_path: Path, text: str, *, slurm: bool = False) -> Reader:
    blocks = read_blocks("a.md", text)
    check_marks(blocks)
    reader = Reader(folder=tmp_path / "reader", slurm=slurm)
    reader.follow(blocks)
    return reader


def fenced(comment: str, body: str, language: str = "bash") -> str:
    return f"{comment}\n```{language}\n{body}\n```\n"


def test_files_are_written_and_commands_run_beside_them(tmp_path: Path) -> None:
    """A file may have folders in its name; commands see all files so far, and our Python."""
    text = (
        fenced("<!-- file: a/b.txt -->", "one\ntwo", "text")
        + fenced("<!-- run -->", "# a comment\n\ncat \\\n  a/b.txt\n$ command -v python")
        + fenced("<!-- output -->", "one\ntwo\n.../bin/python", "text")
    )
    follow(tmp_path, text)
    assert (tmp_path / "reader" / "a" / "b.txt").read_text() == "one\ntwo\n"


def test_a_command_that_fails_is_caught(tmp_path: Path) -> None:
    text = "A line.\n\n" + fenced("<!-- run -->", "echo hello; exit 3\necho not reached")
    with pytest.raises(DocumentError, match=r"a\.md:4: `echo hello; exit 3` exited with 3, not with 0(.|\n)*hello"):
        follow(tmp_path, text)


def test_only_the_last_command_may_fail_and_must(tmp_path: Path) -> None:
    """`exit N` is about the last command, and a success there is as wrong as another status."""
    follow(tmp_path, fenced("<!-- run: exit 1 -->", "true\nfalse"))
    with pytest.raises(DocumentError, match="`true` exited with 0, not with 1"):
        follow(tmp_path, fenced("<!-- run: exit 1 -->", "true"))
    with pytest.raises(DocumentError, match="`false` exited with 1, not with 0"):
        follow(tmp_path, fenced("<!-- run: exit 1 -->", "false\nfalse"))


@pytest.mark.parametrize("body", ["one", "one\nthree", "two\n...", "...\none", "one\n...\nfour", "on\ntwo\nthree"])
def test_a_wrong_output_is_caught(tmp_path: Path, body: str) -> None:
    text = fenced("<!-- run -->", "printf 'one\\ntwo\\nthree\\n'") + fenced("<!-- output -->", body, "text")
    with pytest.raises(DocumentError, match=r"a\.md:6: not printed in this place"):
        follow(tmp_path, text)


@pytest.mark.parametrize(
    "body", ["one\ntwo\nthree", "...", "one\n...", "...\nthree", "one\nt...\n...ree", "...\ntwo\n..."]
)
def test_dots_stand_for_what_varies(tmp_path: Path, body: str) -> None:
    """Alone on a line for any number of lines, in a line for anything in it."""
    text = fenced("<!-- run -->", "printf 'one\\ntwo\\nthree\\n\\n'") + fenced("<!-- output -->", body, "text")
    follow(tmp_path, text)


def test_dots_skip_as_far_as_they_have_to() -> None:
    block = Block(document="a.md", line=1, kind="output", what="", language="text", text="...\na\nb\n")
    compare(block, "a\nx\na\nb\n")
    with pytest.raises(DocumentError, match="not printed"):
        compare(block, "a\nx\na\n")


def test_columns_may_be_of_any_width() -> None:
    block = Block(document="a.md", line=1, kind="output", what="", language="text", text="a  b 12.3 s\n")
    compare(block, "a      b    12.3 s  \n")
    padded = Block(document="a.md", line=1, kind="output", what="", language="text", text="a ... b ... c\n")
    compare(padded, "a      b  1 s  c\n")
    with pytest.raises(DocumentError, match="not printed"):
        compare(block, "ab 12.3 s\n")


def test_numbers_of_an_example_may_be_others(tmp_path: Path) -> None:
    """Numbers, session ids, the host and the folder; names with digits in them, and words, may not."""
    printed = (
        "printf '%s\\n' \"run 7 on $(hostname): 1,234.5 words/s\" \"$PWD/20260101-000000-abcdef/x\" 'opt125m 3 passed'"
    )
    example = "run 12 on laptop: 98 words/s\n/home/you/llmbench/20261121-101500-3a4cd9/x\nopt125m 2 passed"
    follow(tmp_path / "a", fenced("<!-- run -->", printed) + fenced("<!-- output: example -->", example, "text"))
    for right, wrong in (("words/s", "tokens/s"), ("opt125m", "opt350m"), ("passed", "failed"), ("laptop", "host")):
        text = fenced("<!-- run -->", printed) + fenced(
            "<!-- output: example -->", example.replace(right, wrong), "text"
        )
        with pytest.raises(DocumentError, match="not printed"):
            follow(tmp_path / wrong.replace("/", ""), text)
    with pytest.raises(DocumentError, match="not printed"):
        follow(tmp_path / "b", fenced("<!-- run -->", printed) + fenced("<!-- output -->", example, "text"))


@pytest.mark.parametrize("language", ["bash", "console", "python", "yaml", "text", ""])
def test_a_block_without_a_comment_is_caught(language: str) -> None:
    for text in (f"A line.\n```{language}\nx\n```\n", f"<!-- run -->\n\n```{language}\nx\n```\n"):
        with pytest.raises(DocumentError, match=r"a\.md:[23]: this .* block has no comment"):
            check_marks(read_blocks("a.md", text))


@pytest.mark.parametrize(("text", "said"), [
    (fenced("<!-- text -->", "rm -rf", "bash"), "never text"),
    (fenced("<!-- file -->", "x", "yaml"), "needs a name"),
    (fenced("<!-- run: slurms -->", "x"), "not slurms"),
    (fenced("<!-- output -->", "x", "text"), "needs a run block"),
    ("<!-- run -->\n```bash\ntrue\n", r"a\.md:2: this block has no end"),
])  # fmt: skip
def test_a_comment_that_cannot_be_meant_is_caught(text: str, said: str) -> None:
    """A way around the scheme, a name forgotten, a word misspelt, an output of nothing, a block without an end."""
    with pytest.raises(DocumentError, match=said):
        check_marks(read_blocks("a.md", text))


def test_a_block_may_hold_fences() -> None:
    (block,) = read_blocks("a.md", "<!-- file: b.md -->\n````text\n```bash\nfalse\n```\n````\n")
    assert block.text == "```bash\nfalse\n```\n"


def test_what_needs_slurm_is_a_part_of_its_own(tmp_path: Path) -> None:
    """Files are in both parts; a command and its output are in one of them."""
    text = (
        fenced("<!-- file: a -->", "x", "text")
        + fenced("<!-- run -->", "cat a; touch local")
        + fenced("<!-- output -->", "x", "text")
        + fenced("<!-- run: slurm, exit 1 -->", "touch slurm; cat a; false")
        + fenced("<!-- output -->", "x", "text")
    )
    assert needs_slurm(read_blocks("a.md", text))
    assert not needs_slurm(read_blocks("a.md", fenced("<!-- run -->", "true")))
    for slurm in (False, True):
        folder = tmp_path / str(slurm)
        follow(folder, text, slurm=slurm)
        assert (folder / "reader" / "local").exists() is not slurm
        assert (folder / "reader" / "slurm").exists() is slurm


def test_make_only_says_what_it_would_do(tmp_path: Path) -> None:
    """In the checkout, an existing target passes without being made, and one that is not there is caught."""
    (block,) = read_blocks("a.md", fenced("<!-- run: checkout -->", "make bench"))
    assert list(commands(block)) == ["make -n bench"]
    follow(tmp_path, fenced("<!-- run: checkout -->", "make clean"))
    with pytest.raises(DocumentError, match="nowhere"):
        follow(tmp_path, fenced("<!-- run: checkout -->", "make nowhere"))
