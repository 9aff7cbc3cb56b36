"""The wire format of protocol buffers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.readers.tensorboard import (
    FIXED32,
    FIXED64,
    LENGTH,
    VARINT,
    Malformed,
    WireField,
    fields,
    signed,
)
from tests.support.events import varint


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


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"\x08", "without an end"),
        (b"\x08" + b"\xff" * 11, "without an end"),
        (b"\x12\x05four", "after its message"),
        (b"\x0d123", "after its message"),
        (b"\x0b", "unknown kind 3"),
    ],
)
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
