"""TFRecord files and protocol buffers: whole, cut off, damaged."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.readers import tensorboard as tfrecord
from pytest_llmbench.readers.tensorboard import (
    FIXED32,
    FIXED64,
    LENGTH,
    VARINT,
    Malformed,
    WireField,
    fields,
    masked_crc32c,
    records,
    signed,
)
from tests.support.events import framed, varint


def test_the_checksum() -> None:
    for data, crc in ((bytes(32), 0x8A9136AA), (b"123456789", 0xE3069283)):
        assert masked_crc32c(data) == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@given(st.lists(st.binary(max_size=50), max_size=5))
def test_what_is_framed_is_read(content: list[bytes]) -> None:
    assert list(records(io.BytesIO(b"".join(map(framed, content))))) == content


@given(content=st.lists(st.binary(max_size=30), min_size=1, max_size=4), data=st.data())
def test_a_file_cut_anywhere(content: list[bytes], data: st.DataObject) -> None:
    """What is whole is read, and the cut is said, unless it is between two records."""
    whole = b"".join(map(framed, content))
    cut = data.draw(st.integers(0, len(whole) - 1))
    found = list(records(io.BytesIO(whole[:cut])))
    ends = [sum(len(framed(each)) for each in content[:index]) for index in range(len(content) + 1)]
    complete = sum(end <= cut for end in ends[1:])
    assert found == [*content[:complete], *([] if cut in ends else ["the file is cut off"])]


@given(content=st.lists(st.binary(max_size=30), min_size=1, max_size=4), data=st.data())
def test_a_single_wrong_bit_anywhere(content: list[bytes], data: st.DataObject) -> None:
    whole = bytearray(b"".join(map(framed, content)))
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    whole[bit // 8] ^= 1 << bit % 8
    found = list(records(io.BytesIO(bytes(whole))))
    (damage,) = (each for each in found if isinstance(each, str))
    index = found.index(damage)
    assert found[:index] == content[:index]
    assert found[index + 1 :] == (content[index + 1 :] if damage == "its checksum is wrong" else [])


def test_a_record_too_long_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tfrecord, "LONGEST", 10)
    whole = framed(b"a") + framed(bytes(11)) + framed(b"b")
    assert list(records(io.BytesIO(whole))) == [b"a", "its 11 bytes are more than the 10 that are read", b"b"]
    assert list(records(io.BytesIO(whole[:40]))) == [b"a", "the file is cut off"]


@given(st.binary(max_size=200))
def test_no_bytes_raise(data: bytes) -> None:
    assert len(list(records(io.BytesIO(data)))) <= len(data)


def test_the_examples_of_the_documentation() -> None:
    """Field 1 with 150, field 2 with `testing`, and -2 in ten bytes."""
    assert list(fields(b"\x08\x96\x01\x12\x07testing")) == [
        WireField(1, VARINT, 150, b""),
        WireField(2, LENGTH, 0, b"testing"),
    ]
    (minus_two,) = fields(b"\x08" + b"\xfe" + b"\xff" * 8 + b"\x01")
    assert signed(minus_two.integer) == -2


@given(number=st.integers(1, 2**29 - 1), value=st.integers(-(2**63), 2**63 - 1), data=st.binary(max_size=200))
def test_fields_are_read_back(number: int, value: int, data: bytes) -> None:
    key = number << 3
    message = varint(key) + varint(value) + varint(key | LENGTH) + varint(len(data)) + data
    message += varint(key | FIXED32) + b"abcd" + varint(key | FIXED64) + b"abcdefgh"
    first, *others = fields(message)
    assert (first.number, signed(first.integer)) == (number, value)
    assert [other.data for other in others] == [data, b"abcd", b"abcdefgh"]


@pytest.mark.parametrize(("message", "why"), [
    (b"\x08", "without an end"), (b"\x08" + b"\xff" * 11, "without an end"), (b"\x12\x05four", "after its message"),
    (b"\x0d123", "after its message"), (b"\x0b", "unknown kind 3"),
])  # fmt: skip
def test_what_is_no_message(message: bytes, why: str) -> None:
    with pytest.raises(Malformed, match=why):
        list(fields(message))


@given(st.binary(max_size=100))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    try:
        found = list(fields(data))
    except Malformed:
        return
    assert len(found) <= len(data)
