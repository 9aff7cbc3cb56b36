"""Foreign text is made harmless, and secrets are taken out of it; names of sessions, and pauses of ranks."""

import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.plain import json_of
from pytest_llmbench.core.text import harmless
from pytest_llmbench.core.wire import layout
from pytest_llmbench.core.wire.foreign import REDACTED, mapped, mark_of, redacted
from pytest_llmbench.core.wire.notes import longest_pause, note_pause

HARMFUL: Mapping[str, str] = {
    "\x1b[31mred\x1b[0m": "red", "\x1b[2J\x1b[Hcleared": "cleared", "\x9b2Jcleared by one byte": "cleared by one byte",
    "\x1b]0;a title\x07behind": "behind", "\x1b]8;;http://there\x1b\\a link\x1b]8;;\x1b\\": "a link",
    "\x1b]0;a title that never ends": "", "\x1bPdevice\x1b\\behind": "behind", "\x1bcreset": "reset",
    "cut \x1b[3": "cut ", "bell\x07, NUL\x00, DEL\x7f": r"bell\x07, NUL\x00, DEL\x7f",
    "over\rwritten": r"over\rwritten", "line\r\nline": "line\nline",
    "backwards \u202e\u2066": r"backwards \u202e\u2066", "half \udc80 a character": r"half \udc80 a character",
    "a line\u2028of its own": r"a line\u2028of its own",
}  # fmt: skip


@pytest.mark.parametrize("text", [*HARMFUL, "plain", "tab\tand\nline", "größer 日本 ✔ µs", "C:\\x07", ""], ids=repr)
def test_what_a_terminal_would_obey_is_gone_and_other_text_stays(text: str) -> None:
    assert harmless(text) == HARMFUL.get(text, text)


@given(st.text(alphabet=st.characters(max_codepoint=0xFFFF, exclude_categories=()), max_size=60))
def test_nothing_that_is_obeyed_is_left(text: str) -> None:
    out = harmless(text)
    assert all(character in "\t\n" or not (ord(character) < 32 or 127 <= ord(character) < 160) for character in out)
    assert json.loads(json.dumps(out).encode()) == out
    out.encode()
    assert harmless(out) == out


@pytest.mark.parametrize("by", ["value", "mark"])
def test_a_secret_is_taken_out(by: str) -> None:
    secrets = ["hf_abcdefgh", "hf_abcdefghijkl", "größer als 8"]

    def out(text: str) -> str:
        marks = [mark_of(secret) for secret in sorted(secrets, key=len, reverse=True)]
        return redacted(text, secrets) if by == "value" else redacted(text, (), marks)

    assert out("token=hf_abcdefgh.") == f"token={REDACTED}."
    assert out("hf_abcdefghijklhf_abcdefgh") == REDACTED * 2
    assert out("größer als 8") == REDACTED
    assert out("hf_abcdefg is another text") == "hf_abcdefg is another text"


# Texts with one undeclared secret each, written <so>.
TELLTALE = [
    "git clone https://<bob:hunter22>@host/x.git failed", "proxy http://<u:p4ss:w0rd>@proxy:3128/",
    "cannot connect to postgresql://<u:p@ss@word>@host/x", "Authorization: Bearer <abc123def456>",
    "headers={'authorization': 'Basic <Ym9iOmh1bnRlcjI=>'}", 'curl -H "Authorization: <3f5b8c9d0e>"',
    "got bearer <eyAbc123456>, expected another", "export WANDB_API_KEY=<0123456789abcdef0123>",
    "AWS_SECRET_ACCESS_KEY: <wJalrXUtnFEMI/K7MDENG/bPxRfiCY>", '{"hf_token": "<abcd1234abcd>", "steps": 3}',
    "train.py --token=<s3cr3tvalue> --steps 3", "train.py --wandb-api-key <s3cr3tvalue> --steps 3",
    "password: <hunter-hunter>", "db_passwd=<correct.horse>&x=1",
    "cannot log in with <hf_ABCDEFGHIJKLMNOPQRSTUVWX> at all", "cannot log in with <ghp_ABCDEFGHIJKLMNOPQRSTUVWX0123>",
    "no model for <nvapi-ABCDEFGHIJKLMNOPQRSTUVWX>", "key <AKIAIOSFODNN7EXAMPLE>",
    "<-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNz\naC1rZXk=\n-----END OPENSSH PRIVATE KEY----->",
]  # fmt: skip
INNOCENT = [
    "pad_token: <|endoftext|>, eos_token=</s>, max_tokens=1024000, token = 50256000",
    'HF_TOKEN="$(</home/bench/.hf_token)" && export HF_TOKEN',
    "KeyError: 'transformer.layers.12.weight'; missing key: transformer.layers.12.weight",
    "docker://nvcr.io:5000/nvidia/nemo@sha256:0123456789abcdef", "tokens per second: 12345.678, words/s=123456",
    "--tokenizer-type GPT2BPETokenizer --vocab-file /data/gpt2-vocab-512.json",
    "step 12: https://host:8080/path?x=1 user@host1", "unknown key 'stpes'; secret: /etc/key1/file22",
]  # fmt: skip


@pytest.mark.parametrize("text", TELLTALE)
def test_a_secret_that_nobody_declared_is_known_by_what_is_around_it(text: str) -> None:
    """A login in a URL, a header, an option, a variable, or the form of a well-known service's keys."""
    before, _, rest = text.partition("<")
    secret, _, after = rest.rpartition(">")
    out = redacted(f"{before}{secret}{after}", ())
    assert (REDACTED in out, secret in out) == (True, False)
    assert out == f"{before}{REDACTED}{after}"
    assert redacted(out, ()) == out


@pytest.mark.parametrize("text", INNOCENT)
def test_what_only_has_the_name_of_a_secret_stays(text: str) -> None:
    """Numbers, tokens of a vocabulary, files of secrets, digests, addresses."""
    assert redacted(text, ()) == text


@pytest.mark.parametrize(
    "piece", ["//", "//a:", "token=", "token=1", "Bearer ", "--key ", "eyJa.", "-----BEGIN ", "secret" * 3]
)
def test_no_text_takes_long(piece: str) -> None:
    """Quadratic time would be hours for a megabyte that begins a secret again and again."""
    began = time.process_time()
    redacted(piece * ((1 << 18) // len(piece)), ())
    assert time.process_time() - began < 20


def test_a_mark_does_not_hold_its_value() -> None:
    one, other = mark_of("a-long-secret"), mark_of("a-long-secret")
    assert "secret" not in json_of(one)
    assert (one.length, one.digest != other.digest) == (13, True)


def test_plain_data_is_gone_through() -> None:
    """Every text at every depth; numbers, names of keys and kinds of sequences stay."""
    data: Mapping[str, Any] = {"a": ["x", ("x", 1.5)], "x": {"b": None, "c": "x"}}
    assert mapped(data, lambda text: text + "!") == {"a": ["x!", ("x!", 1.5)], "x": {"b": None, "c": "x!"}}


def test_the_longest_pause_is_found(tmp_path: Path) -> None:
    assert longest_pause(tmp_path) is None
    note_pause(tmp_path, "rank-00000", 6.04)
    note_pause(tmp_path, "rank-00001", 20.0)
    note_pause(tmp_path, "rank-00001", 3.0)
    with (tmp_path / "pauses" / "rank-00000").open("a") as file:
        file.write("\nx")
    assert longest_pause(tmp_path) == ("rank-00001", 20.0)
    assert longest_pause(tmp_path, since=time.time() - 60) == ("rank-00001", 20.0)
    assert longest_pause(tmp_path, since=time.time() + 60) is None


def test_nobody_ends_because_a_pause_cannot_be_noted(tmp_path: Path) -> None:
    (tmp_path / "pauses").write_text("in the way")
    note_pause(tmp_path, "rank-00000", 6.0)


def test_sessions_sort_by_their_beginning() -> None:
    ids = []
    for _ in range(50):
        ids.append(layout.new_id())
        time.sleep(0.001)
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{6}", each) for each in ids)
    assert len({each[-3:] for each in ids}) > 1
