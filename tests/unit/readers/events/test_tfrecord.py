"""TFRecord files: whole, cut off, damaged."""

import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.readers import tensorboard as tfrecord
from pytest_llmbench.readers.tensorboard import masked_crc32c, records


def record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc32c(length)) + data + struct.pack("<I", masked_crc32c(data))


def test_the_checksum() -> None:
    for data, crc in ((bytes(32), 0x8A9136AA), (b"123456789", 0xE3069283)):
        assert masked_crc32c(data) == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@given(st.lists(st.binary(max_size=50), max_size=5))
def test_what_is_framed_is_read(content: list[bytes]) -> None:
    assert list(records(io.BytesIO(b"".join(map(record, content))))) == content


@given(content=st.lists(st.binary(max_size=30), min_size=1, max_size=4), data=st.data())
def test_a_file_cut_anywhere(content: list[bytes], data: st.DataObject) -> None:
    """What is whole is read, and the cut is said, unless it is between two records."""
    whole = b"".join(map(record, content))
    cut = data.draw(st.integers(0, len(whole) - 1))
    found = list(records(io.BytesIO(whole[:cut])))
    ends = [sum(len(record(each)) for each in content[:index]) for index in range(len(content) + 1)]
    complete = sum(end <= cut for end in ends[1:])
    assert found == [*content[:complete], *([] if cut in ends else ["the file is cut off"])]


@given(content=st.lists(st.binary(max_size=30), min_size=1, max_size=4), data=st.data())
def test_a_single_wrong_bit_anywhere(content: list[bytes], data: st.DataObject) -> None:
    whole = bytearray(b"".join(map(record, content)))
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    whole[bit // 8] ^= 1 << bit % 8
    found = list(records(io.BytesIO(bytes(whole))))
    (damage,) = (each for each in found if isinstance(each, str))
    index = found.index(damage)
    assert found[:index] == content[:index]
    assert found[index + 1 :] == (content[index + 1 :] if damage == "its checksum is wrong" else [])


def test_a_record_too_long_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tfrecord, "LONGEST", 10)
    whole = record(b"a") + record(bytes(11)) + record(b"b")
    assert list(records(io.BytesIO(whole))) == [b"a", "its 11 bytes are more than the 10 that are read", b"b"]
    assert list(records(io.BytesIO(whole[:40]))) == [b"a", "the file is cut off"]


@given(st.binary(max_size=200))
def test_no_bytes_raise(data: bytes) -> None:
    assert len(list(records(io.BytesIO(data)))) <= len(data)
