"""Kinds of damage: what a crash, a full disk, ranks that write at once, an editor, or a hand does to a log."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from benchmarks.mutations.forms import TEXT, Form, Number


@dataclass(frozen=True, slots=True)
class Log:
    """One file, to be damaged."""

    form: Form  # how it is taken apart
    pieces: Sequence[bytes]  # its lines or records
    telling: Sequence[int]  # numbers of the pieces that say something about the run
    others: Sequence[bytes]  # other logs of the same reader


# Returns the damaged log; None where this kind of damage cannot be done to it.
Damage = Callable[[Log, Random], "bytes | None"]
_Texts = Callable[[bytes, Random], "bytes | None"]


def pick(log: Log, rng: Random) -> int | None:
    """A piece: half of the time one that says something, as most of a long log does not."""
    if not log.pieces:
        return None
    if log.telling and rng.random() < 0.7:
        return rng.choice(log.telling)
    return rng.randrange(len(log.pieces))


def _with(log: Log, changes: Mapping[int, bytes]) -> bytes:
    return b"".join(changes.get(index, piece) for index, piece in enumerate(log.pieces))


def _without(log: Log, gone: range | set[int]) -> bytes:
    return b"".join(piece for index, piece in enumerate(log.pieces) if index not in gone)


def _of_a_piece(change: _Texts) -> Damage:
    """Damage to one piece."""

    def damage(log: Log, rng: Random) -> bytes | None:
        index = pick(log, rng)
        changed = None if index is None else change(log.pieces[index], rng)
        return None if index is None or changed is None else _with(log, {index: changed})

    return damage


def _of_a_number(change: _Texts) -> Damage:
    """Damage to one number."""

    def damage(log: Log, rng: Random) -> bytes | None:
        index = pick(log, rng)
        found = log.form.numbers(log.pieces[index]) if index is not None else []
        if index is None or not found:
            return None
        number = rng.choice(found)
        text = change(number.text, rng)
        return None if text is None else _with(log, {index: log.form.put(log.pieces[index], number, text)})

    return damage


def _places(text: bytes, signs: bytes) -> list[int]:
    return [at for at, byte in enumerate(text) if byte in signs]


_DIGITS = b"0123456789"


def _flip_digit(text: bytes, rng: Random) -> bytes:
    at = rng.choice(_places(text, _DIGITS))
    return text[:at] + bytes([rng.choice(_DIGITS.replace(text[at : at + 1], b""))]) + text[at + 1 :]


def _insert_digit(text: bytes, rng: Random) -> bytes:
    at = rng.randrange(len(text) + 1)
    return text[:at] + bytes([rng.choice(_DIGITS)]) + text[at:]


def _delete_digit(text: bytes, rng: Random) -> bytes:
    at = rng.choice(_places(text, _DIGITS))
    return text[:at] + text[at + 1 :]


def _move_point(text: bytes, rng: Random) -> bytes | None:
    before, point, after = text.partition(b".")
    if not point or not after[:1].isdigit():
        return None
    if rng.random() < 0.5 and before[-1:].isdigit():
        return before[:-1] + b"." + before[-1:] + after
    return before + after[:1] + b"." + after[1:]


def _drop_sign(text: bytes, rng: Random) -> bytes | None:
    if rng.random() < 0.5 and (at := text.lower().find(b"e")) > 0:
        return text[:at]
    places = _places(text, b"-+.")
    if not places:
        return None
    at = rng.choice(places)
    return text[:at] + text[at + 1 :]


def _no_number(_: bytes, rng: Random) -> bytes:
    return rng.choice((b"nan", b"inf", b"-inf", b"", b"0", b"-1", b"1e300", b"9" * 25, b"-nan", b"None", b"0.0"))


def _scale_number(text: bytes, rng: Random) -> bytes:
    return _scaled(text, rng.choice((0.5, 0.9, 0.98, 1.02, 1.1, 2.0, 10.0, 0.1)))


def _scaled(text: bytes, factor: float) -> bytes:
    """A number times a factor, with as many digits."""
    mantissa, _, exponent = text.lower().partition(b"e")
    decimals = len(mantissa.partition(b".")[2])
    if exponent:
        return f"{float(text) * factor:.{decimals}{chr(text[len(mantissa)])}}".encode()
    return f"{float(text) * factor:.{decimals}f}".encode()


_UNITS = ((b"ms", b"s"), (b"(s)", b"(ms)"), (b"GB", b"MB"), (b"us", b"ms"), (b"GiB", b"GB"),
          (b"samples/sec", b"it/sec"), (b"sec", b"msec"), (b"MiB", b"GiB"), (b" W", b" mW"),
          (b"seconds", b"ms"))  # fmt: skip


def _unit(piece: bytes, rng: Random) -> bytes | None:
    fitting = [(old, new) for old, new in _UNITS if old in piece]
    if not fitting:
        return None
    old, new = rng.choice(fitting)
    return piece.replace(old, new, 1)


def _cut_line(piece: bytes, rng: Random) -> bytes:
    body = piece.rstrip(b"\r\n")
    return body[: rng.randrange(len(body) + 1)] + piece[len(body) :]


def _lose_beginning(piece: bytes, rng: Random) -> bytes:
    return piece[rng.randrange(len(piece) + 1) :]


def _delete_bytes(piece: bytes, rng: Random) -> bytes:
    at = rng.randrange(len(piece) + 1)
    return piece[:at] + piece[at + rng.choice((1, 2, 3, 8, 20)) :]


def _insert(*texts: bytes) -> _Texts:
    def change(piece: bytes, rng: Random) -> bytes:
        at = rng.randrange(len(piece) + 1)
        return piece[:at] + rng.choice(texts) + piece[at:]

    return change


def _flip_byte(piece: bytes, rng: Random) -> bytes:
    at = rng.randrange(len(piece))
    return piece[:at] + bytes([piece[at] ^ 1 << rng.randrange(8)]) + piece[at + 1 :]


def _wrong_prefix(piece: bytes, rng: Random) -> bytes:
    return rng.choice((b"[default7]:", b"12: ", b"node-3: ", b"[rank5]: ", b"??? ", b"vm-1| ", b"(w, pid=3) ")) + piece


def _drop_field(piece: bytes, rng: Random) -> bytes | None:
    sign = next((sign for sign in (b" | ", b", ", b"  ", b" ") if piece.count(sign) > 1), None)
    if sign is None:
        return None
    parts = piece.split(sign)
    del parts[rng.randrange(len(parts) - 1)]
    return sign.join(parts)


def _repeat_field(piece: bytes, rng: Random) -> bytes | None:
    sign = next((sign for sign in (b" | ", b", ") if piece.count(sign) > 1), None)
    if sign is None:
        return None
    parts = piece.split(sign)
    at = rng.randrange(len(parts) - 1)
    return sign.join([*parts[:at], parts[at], *parts[at:]])


def _delete_line(log: Log, rng: Random) -> bytes | None:
    index = pick(log, rng)
    return None if index is None else _without(log, {index})


def _delete_first(log: Log, _: Random) -> bytes | None:
    return _without(log, {log.telling[0]}) if log.telling else None


def _delete_last(log: Log, _: Random) -> bytes | None:
    return _without(log, {log.telling[-1]}) if log.telling else None


def _delete_several(log: Log, rng: Random) -> bytes:
    return _without(log, {index for _ in range(rng.randint(2, 6)) if (index := pick(log, rng)) is not None})


def _delete_block(log: Log, rng: Random) -> bytes | None:
    start = pick(log, rng)
    return None if start is None else _without(log, range(start, start + rng.randint(2, max(3, len(log.pieces) // 4))))


def _keep_last(log: Log, _: Random) -> bytes | None:
    return _without(log, set(log.telling[:-1])) if len(log.telling) > 1 else None


def _duplicate(log: Log, rng: Random) -> bytes | None:
    index = pick(log, rng)
    return None if index is None else _with(log, {index: 2 * log.pieces[index]})


def _copy_elsewhere(log: Log, rng: Random) -> bytes | None:
    source, place = pick(log, rng), pick(log, rng)
    if source is None or place is None:
        return None
    return _with(log, {place: log.pieces[place] + log.pieces[source]})


def _swap(log: Log, rng: Random) -> bytes | None:
    one, other = pick(log, rng), pick(log, rng)
    if one is None or other is None:
        return None
    return _with(log, {one: log.pieces[other], other: log.pieces[one]})


def _cut_file(log: Log, rng: Random) -> bytes:
    data = b"".join(log.pieces)
    return data[: rng.randrange(len(data) + 1)]


def _glue(log: Log, rng: Random) -> bytes | None:
    index = pick(log, rng)
    return None if index is None else _with(log, {index: log.pieces[index].rstrip(b"\r\n")})


def _behind(log: Log, rng: Random) -> bytes | None:
    """Another line's text, or a rank's words, behind a line."""
    index, other = pick(log, rng), pick(log, rng)
    if index is None or other is None:
        return None
    body = log.pieces[index].rstrip(b"\r\n")
    return _with(log, {index: body + _words(log, other, rng) + log.pieces[index][len(body) :]})


def _into(log: Log, rng: Random) -> bytes | None:
    index, other = pick(log, rng), pick(log, rng)
    if index is None or other is None:
        return None
    piece = log.pieces[index]
    at = rng.randrange(len(piece) + 1)
    return _with(log, {index: piece[:at] + _words(log, other, rng) + piece[at:]})


def _words(log: Log, other: int, rng: Random) -> bytes:
    said = (b"WARNING: find_unused_parameters was set", b"vm:1844:1902 [0] NCCL INFO Channel 03/0 : 0[0] -> 1[1]",
            b" rank 3 says 12.5 of 9", log.pieces[other].rstrip(b"\r\n"))  # fmt: skip
    return rng.choice(said)


def _line_ends(log: Log, rng: Random) -> bytes:
    data = b"".join(log.pieces)
    return data.replace(b"\n", rng.choice((b"\r\n", b"\r", b"\n\n", b"\r\r\n", b" \n")))


def _repeat_last(log: Log, rng: Random) -> bytes | None:
    """The last line that says something a second time, with another number in it."""
    if not log.telling:
        return None
    index = log.telling[-1]
    found = log.form.numbers(log.pieces[index])
    if not found:
        return None
    number = rng.choice(found)
    again = log.form.put(log.pieces[index], number, _flip_digit(number.text, rng))
    return _with(log, {index: log.pieces[index] + again})


def _splice(log: Log, rng: Random) -> bytes | None:
    """The beginning of one log and the end of another, or of itself; or one behind the other."""
    other = log.form.split(rng.choice([*log.others, b"".join(log.pieces)]))
    if rng.random() < 0.3:
        return b"".join([*log.pieces, *other])
    return b"".join([*log.pieces[: rng.randrange(len(log.pieces) + 1)], *other[rng.randrange(len(other) + 1) :]])


def _drop_header(log: Log, rng: Random) -> bytes | None:
    return _without(log, range(log.telling[0] + rng.choice((0, 0, 1)))) if log.telling else None


def _drop_footer(log: Log, rng: Random) -> bytes | None:
    if not log.telling:
        return None
    last = rng.choice(log.telling[-3:])
    return _without(log, range(last + 1, len(log.pieces)))


def _scale_field(log: Log, rng: Random) -> bytes | None:
    """The same number of every line that says something, times the same factor."""
    factor = rng.choice((0.5, 0.8, 0.95, 0.985, 1.015, 1.05, 1.2, 2.0))
    found = {index: log.form.numbers(log.pieces[index]) for index in log.telling}
    column = rng.randrange(max((len(each) for each in found.values()), default=0) or 1)
    chosen = {index: each[column] for index, each in found.items() if column < len(each)}
    if not chosen:
        return None
    put = log.form.put
    return _with(log, {index: put(log.pieces[index], number, _scaled(number.text, factor))
                       for index, number in chosen.items()})  # fmt: skip


def _count(log: Log, rng: Random) -> bytes | None:
    """A whole number, as counts and world sizes are, one more, one less, doubled or halved; everywhere it stands."""
    index = pick(log, rng)
    found = log.form.numbers(log.pieces[index]) if index is not None else []
    whole = [number for number in found if number.text.isdigit() and len(number.text) < 9]
    if index is None or not whole:
        return None
    number = rng.choice(whole)
    value = int(number.text)
    new = str(rng.choice((value + 1, max(0, value - 1), 2 * value, value // 2))).encode()
    if rng.random() < 0.5:
        return _with(log, {index: log.form.put(log.pieces[index], number, new)})
    return _with(log, {each: _everywhere(log, each, number, new) for each in log.telling})


def _everywhere(log: Log, index: int, number: Number, new: bytes) -> bytes:
    piece = log.pieces[index]
    for same in reversed(log.form.numbers(piece)):
        if same.text == number.text:
            piece = log.form.put(piece, same, new)
    return piece


def _swap_numbers(log: Log, rng: Random) -> bytes | None:
    """Two numbers of a line in each other's place, or a number of another line in the place of one of this."""
    index, other = pick(log, rng), pick(log, rng)
    here = log.form.numbers(log.pieces[index]) if index is not None else []
    there = log.form.numbers(log.pieces[other]) if other is not None else []
    if index is None or not here or not there:
        return None
    return _with(log, {index: log.form.put(log.pieces[index], rng.choice(here), rng.choice(there).text)})


def _swap_digits(text: bytes, rng: Random) -> bytes | None:
    places = [at for at in _places(text[:-1], _DIGITS) if text[at + 1 : at + 2].isdigit()]
    if not places:
        return None
    at = rng.choice(places)
    return text[:at] + text[at + 1 : at + 2] + text[at : at + 1] + text[at + 2 :]


def _delay(log: Log, rng: Random) -> bytes | None:
    """A line that comes some lines later, as from a buffer of its own."""
    index = pick(log, rng)
    if index is None or index + 1 == len(log.pieces):
        return None
    later = min(len(log.pieces), index + 1 + rng.choice((1, 1, 2, 3, 8, 40)))
    return b"".join([*log.pieces[:index], *log.pieces[index + 1 : later], log.pieces[index], *log.pieces[later:]])


def _merge_fields(log: Log, rng: Random) -> bytes | None:
    """The first fields of a line that says something, and the rest of those of another."""
    if len(log.telling) < 2:
        return None
    one, other = rng.sample(log.telling, 2)
    sign = b" | " if b" | " in log.pieces[one] else b", "
    first, second = log.pieces[one].split(sign), log.pieces[other].split(sign)
    if min(len(first), len(second)) < 2:
        return None
    at = rng.randrange(1, min(len(first), len(second)))
    return _with(log, {one: sign.join([*first[:at], *second[at:]]), **({other: b""} if rng.random() < 0.5 else {})})


def _rotate(log: Log, rng: Random) -> bytes:
    """A log whose beginning went to another file, which is lost, or read after it."""
    at = rng.randrange(len(log.pieces) + 1)
    return b"".join([*log.pieces[at:], *(log.pieces[:at] if rng.random() < 0.5 else ())])


def _locale(log: Log, rng: Random) -> bytes:
    """Numbers with a decimal comma, or with points between thousands, from a line on."""
    since, point = rng.choice([0, *log.telling]), rng.choice((b",", b"\xc2\xa0", b"'"))
    return b"".join(
        piece if index < since else re.sub(rb"(?<=\d)\.(?=\d)", lambda _: point, piece)
        for index, piece in enumerate(log.pieces)
    )


def _unit_from_here(log: Log, rng: Random) -> bytes | None:
    """A number of each line that says something is in another unit from one of them on, named or not."""
    if len(log.telling) < 2:
        return None
    since, factor = rng.choice(log.telling[1:]), rng.choice((1e-3, 1e3, 60.0, 1 / 60, 1024.0))
    found = {index: log.form.numbers(log.pieces[index]) for index in log.telling if index >= since}
    column = rng.randrange(max(map(len, found.values())) or 1)
    changes = {}
    for index, numbers in found.items():
        if column < len(numbers):
            piece = log.form.put(log.pieces[index], numbers[column], _scaled(numbers[column].text, factor))
            changes[index] = (_unit(piece, rng) or piece) if factor < 0.01 and rng.random() < 0.2 else piece
    return _with(log, changes) if changes else None


def _copy_field(log: Log, rng: Random) -> bytes | None:
    """A number as the same field of another line has it."""
    if len(log.telling) < 2:
        return None
    one, other = rng.sample(log.telling, 2)
    here, there = log.form.numbers(log.pieces[one]), log.form.numbers(log.pieces[other])
    if not here or len(here) != len(there):
        return None
    at = rng.randrange(len(here))
    return _with(log, {one: log.form.put(log.pieces[one], here[at], there[at].text)})


def _write_twice(log: Log, rng: Random) -> bytes:
    """A buffer that was written a second time."""
    data, size = b"".join(log.pieces), rng.choice((512, 4096, 8192))
    at = size * rng.randrange(len(data) // size + 1)
    return data[: at + size] + data[at:]


def _interleave(log: Log, rng: Random) -> bytes | None:
    """Two lines that were written at once, in turns."""
    index = pick(log, rng)
    if index is None or index + 1 == len(log.pieces):
        return None
    (one, end), other = (log.pieces[index].rstrip(b"\r\n"), b"\n"), log.pieces[index + 1]
    here, there = rng.randrange(len(one) + 1), rng.randrange(len(other) + 1)
    return _with(log, {index: one[:here] + other[:there] + one[here:] + end, index + 1: other[there:]})


KINDS: Mapping[str, Damage] = {
    "delete a line": _delete_line,
    "delete the first line": _delete_first,
    "delete the last line": _delete_last,
    "delete several lines": _delete_several,
    "delete a block": _delete_block,
    "keep the last line alone": _keep_last,
    "double a line": _duplicate,
    "copy a line elsewhere": _copy_elsewhere,
    "swap two lines": _swap,
    "cut a line": _of_a_piece(_cut_line),
    "lose a line's beginning": _of_a_piece(_lose_beginning),
    "cut the file": _cut_file,
    "glue two lines": _glue,
    "other text behind a line": _behind,
    "other text in a line": _into,
    "flip a digit": _of_a_number(_flip_digit),
    "insert a digit": _of_a_number(_insert_digit),
    "delete a digit": _of_a_number(_delete_digit),
    "move a decimal point": _of_a_number(_move_point),
    "drop a sign or exponent": _of_a_number(_drop_sign),
    "no or a huge number": _of_a_number(_no_number),
    "scale a number": _of_a_number(_scale_number),
    "swap numbers": _swap_numbers,
    "change a unit": _of_a_piece(_unit),
    "change a count": _count,
    "scale a field": _scale_field,
    "drop a field": _of_a_piece(_drop_field),
    "repeat a field": _of_a_piece(_repeat_field),
    "delete bytes": _of_a_piece(_delete_bytes),
    "flip a bit": _of_a_piece(_flip_byte),
    "NUL bytes": _of_a_piece(_insert(b"\0", b"\0" * 512)),
    "Latin-1 bytes": _of_a_piece(_insert(b"\xe4", b"Knoten f\xfcr", b"\xff\xfe")),
    "carriage returns": _of_a_piece(_insert(b"\r", b"\r\n", b"\n")),
    "line ends of the file": _line_ends,
    "20,000 blanks": _of_a_piece(_insert(b" " * 20_000, b"\t" * 20_000)),
    "a wrong prefix": _of_a_piece(_wrong_prefix),
    "repeat the last line changed": _repeat_last,
    "splice two logs": _splice,
    "drop the header": _drop_header,
    "drop the footer": _drop_footer,
    "swap digits": _of_a_number(_swap_digits),
    "delay a line": _delay,
    "merge two lines' fields": _merge_fields,
    "rotate the log": _rotate,
    "another locale": _locale,
    "another unit from a line on": _unit_from_here,
    "copy a field of another line": _copy_field,
    "write a buffer twice": _write_twice,
    "interleave two lines": _interleave,
}
TEXT_ONLY = frozenset({"line ends of the file", "change a unit", "another locale"})


def damaged(log: Log, rng: Random) -> tuple[str, bytes]:
    """Damage a log in a way that fits it; the kind, and what is left."""
    whole = b"".join(log.pieces)
    for _ in range(100):
        kind = rng.choice([*KINDS])
        left = None if kind in TEXT_ONLY and log.form is not TEXT else KINDS[kind](log, rng)
        if left is not None and left != whole:
            return kind, left
    raise ValueError(f"nothing can be done to a log of {len(whole)} bytes")
