"""nccl-tests' tables and files: every version's exact numbers, and none where there is none."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pytest_llmbench.checks.collectives.report import read_nccl_tests, read_nccl_tests_json
from pytest_llmbench.core.record.curves import Curve, Timing
from pytest_llmbench.readers.items import Unreadable
from tests.conftest import known
from tests.standins import nccl_tests as standin
from tests.support.samples import readable

GIB = 1 << 30

# A printed text of tests/data/nccl_tests.
OLD, NEW, STAMPED, PER_ITERATION = (
    (Path(__file__).parents[3] / "data" / "nccl_tests" / f"{name}.txt").read_text("utf-8")
    for name in ("old", "new", "stamped", "per_iteration")
)


def read(text: str) -> Curve:
    curves = read_nccl_tests(text)
    assert len(curves) == 1
    return curves[0]


def at(curve: Curve, size: int) -> tuple[Timing, Timing]:
    point = known(curve.at(size))
    assert point.out_of_place is not None
    assert point.in_place is not None
    return point.out_of_place, point.in_place


def timed(time_us: float, algbw: float, busbw: float, wrong: int | None = None) -> Timing:
    return Timing(time_us=time_us, algbw=algbw, busbw=busbw, wrong=wrong)


@pytest.mark.parametrize(("name", "ranks", "rows", "average", "largest"), readable(
    [("nccl-tests/superbench_nccl_allreduce.log", 8, 34, 68.4048, timed(63896, 134.44, 235.26)),
     ("nccl-tests/superbench_nccl_allgather.log", 8, 34, 58.2651, timed(33646, 255.31, 223.39)),
     ("nccl-tests/superbench_nccl_broadcast.log", 8, 34, 64.8653, timed(36896, 232.81, 232.81)),
     ("nccl-tests/superbench_nccl_reduce.log", 8, 34, 65.018, timed(37613, 228.38, 228.38)),
     ("nccl-tests/dgxc_all_reduce_8xH100_root-column.txt", 8, 32, 159.151, timed(31307, 274.38, 480.16, 0)),
     ("nccl-tests/awslabs_all_reduce_2xp5_srun-l-prefix.txt", None, 32, None, timed(33605, 255.62, 479.28, 0)),
     ("logs/nccl_tests_all_reduce_4_h200.txt", 4, 31, 124.386, timed(35306, 243.30, 364.95, 0))],
    lambda case: case[0],
))  # fmt: skip
def test_public_samples(
    sample: Callable[[str], Path], name: str, ranks: int | None, rows: int, average: float | None, largest: Timing
) -> None:
    """Every row is read; at 8 GiB the numbers are those of the file; one that was cut off is incomplete."""
    curve = read(sample(name).read_text())
    assert (curve.ranks, len(curve.points), curve.unreadable) == (ranks, rows, 0)
    assert (curve.average_busbw, curve.complete) == (average, average is not None)
    assert at(curve, 8 * GIB)[0] == largest
    assert not curve.wrong
    plain = name.replace("_", "")
    names = ("all_gather", "broadcast", "all_reduce", "reduce")
    named = next(each for each in names if each.replace("_", "") in plain)
    (checked,) = read_nccl_tests(sample(name).read_text(), named, ranks or 16)
    assert (checked.doubt, checked.points) == (None, curve.points)


def test_the_old_and_the_new_table_give_the_right_columns() -> None:
    """Field 6 is busbw in the old table and algbw in the new: a script that takes it fails healthy nodes."""
    assert at(read(OLD), 8 * GIB) == (timed(63896, 134.44, 235.26), timed(63959, 134.3, 235.03))
    new = read(NEW)
    assert at(new, 8 * GIB) == (timed(31307, 274.38, 274.38, 0), timed(31328, 274.19, 274.19, 1_000_000))
    assert (new.collective, new.ranks, new.nodes, new.out_of_bounds) == ("all_reduce", 2, 2, 2)
    assert [point.size for point in new.wrong] == [1 << 20, 8 * GIB]
    assert [point.redop for point in new.points] == ["sum"] * 3


@pytest.mark.parametrize("text", [STAMPED, PER_ITERATION], ids=["timestamps", "per iteration"])
def test_columns_on_the_right_of_the_times(text: str) -> None:
    """Timestamps (-S 1) and statistics over iterations (-I 1) shift nothing."""
    curve = read(text)
    assert at(curve, 8 * GIB) == (timed(31307, 274.38, 480.16, 0), timed(31328, 274.19, 479.84, 0))
    assert not curve.complete


@pytest.mark.parametrize("row", [
    "    31307  274.38  480.16       0    31328  274.19  479.84",
    "    31307  274.38  480.16       0    313  274.19  479.84  0",
    "    31307  27438.1  480.16     0   31328  274.19  479.84  0",
    "      nan  274.38  480.16       0    31328  274.19  479.84  0",
    "    31307vm:1:1 [0] NCCL INFO Launch mode Parallel",
    "    31307  274.38  480.16      -1    31328  274.19  479.84  0",
], ids=["a column less", "lost digits", "glued digits", "no number", "another line in it",
        "less than none wrong"])  # fmt: skip
def test_a_row_that_cannot_be_read_is_counted(row: str) -> None:
    left = "  8589934592    2147483648     float     sum      -1"
    curve = read(NEW.replace("# Out of", f"{left}{row}\n# Out of"))
    assert (curve.unreadable, len(curve.points)) == (1, 3)


def test_columns_that_are_not_known_give_no_number() -> None:
    """-C 1 prints how long it took to queue the operation; a row alone does not say which column is which."""
    curve = read(NEW.replace("    time", " cputime"))
    assert (curve.points, curve.unreadable) == ((), 3)
    curve = read(OLD.splitlines()[4] + "\n")
    assert (curve.points, curve.unreadable, curve.complete) == ((), 1, False)


def test_an_old_deviation_is_no_count() -> None:
    """Before 2.13 the last column was the largest deviation: more than 0 need not be wrong, and the footer counts."""
    curve = read(OLD.replace("N/A\n", "4e-07\n").replace(" 0 OK", " 3 FAILED"))
    assert [timing.wrong for timing in at(curve, 8 * GIB)] == [None, None]
    assert curve.out_of_bounds == 3


@pytest.mark.parametrize(("old", "new", "why"), [
    ("274.38  274.38", "274.38  284.38",
     "at 8GiB its busbw is 284.38 GB/s, where an algbw of 274.38 GB/s makes 274.38"),
    ("32.48   32.48", "32.48   32.45", "at 1MiB its busbw is 32.45 GB/s"),
    ("   262144 ", "   262148 ",
     "at 1MiB its elements are 1048592 B, which make 1048592 B of all_reduce on 2 ranks"),
    (": 102.22", ": 112.22", "its average bus bandwidth is 112.22 GB/s, and the mean of its 6 numbers is 102.22"),
    (": 102.22", ": 102.215", None),
    (": 102.22", ": -nan", "its average bus bandwidth is '-nan', not a bandwidth"),
    (": 102.22", ": 102.2x", "its average bus bandwidth is '102.2x', not a bandwidth"),
    ("# Avg", "# Avg bus bandwidth    : 1\n# Avg", "its average bus bandwidth is printed twice, 1 and 102.22"),
    ("2 FAILED", "2 OK", "it reports 2 values out of bounds, and calls that OK"),
    ("2 FAILED", "0 FAILED", "it reports 0 values out of bounds, and calls that FAILED"),
    ("# Avg", "# Out of bounds values : 1 FAILED\n# Avg", "its counts of values out of bounds differ, 2 and 1"),
])  # fmt: skip
def test_numbers_that_contradict_each_other_are_a_doubt(old: str, new: str, why: str | None) -> None:
    curve = read(NEW.replace(old, new, 1))
    assert read(NEW).doubt is None
    assert curve.doubt is None if why is None else curve.doubt is not None and curve.doubt.startswith(why)


def test_the_factor_is_that_of_the_operation_and_its_ranks() -> None:
    """What the log does not say, whoever ran it knows; an operation of another factor does not fit."""
    (known,) = read_nccl_tests(OLD, "all_reduce", 8)
    assert known.doubt is None
    for collective, ranks in (("all_reduce", 4), ("broadcast", 8)):
        (doubtful,) = read_nccl_tests(OLD, collective, ranks)
        assert doubtful.doubt is not None
        assert "its busbw is 235.26 GB/s" in doubtful.doubt
    (parts,) = read_nccl_tests(OLD, "all_gather", 8)
    assert parts.doubt == "at 8GiB its elements are 8589934592 B, which make 68719476736 B of all_gather on 8 ranks"
    assert read(OLD).doubt is None


@pytest.mark.parametrize("line", ["# Out of bounds values : 2 FAILED\n", "# Avg bus bandwidth    : 102.22\n"])
def test_no_row_follows_a_footer(line: str) -> None:
    row = NEW.splitlines(keepends=True)[-6]
    curve = read(NEW.replace(line, line + row))
    assert (len(curve.points), curve.unreadable) == (3, 1)


@pytest.mark.parametrize("wrong", ["nan", "0.5", "inf"])
def test_wrong_elements_are_counted_whole(wrong: str) -> None:
    curve = read(NEW.replace("274.38  274.38       0", f"274.38  274.38     {wrong}"))
    assert (len(curve.points), curve.unreadable) == (2, 1)


def test_blanks_cost_nothing() -> None:
    blanks = " " * 200_000
    assert read(NEW.replace("31307", blanks + "31307")) == read(NEW)
    assert read(NEW.replace("32.27       0", "32.27" + blanks)).unreadable == 1


def test_two_tables_are_two_curves() -> None:
    """One program after the other in one log; nothing of the first is in the second."""
    curves = read_nccl_tests(NEW + NEW.replace("all_reduce", "all_gather").replace("2 FAILED", "0 OK"))
    assert [curve.collective for curve in curves] == ["all_reduce", "all_gather"]
    assert [curve.out_of_bounds for curve in curves] == [2, 0]
    assert [(curve.ranks, len(curve.points), curve.complete) for curve in curves] == [(2, 3, True)] * 2


def test_ranks_that_each_print_a_table() -> None:
    """Programs without MPI under `srun --label` measure each for itself: two tables, line by line in one log."""
    lines = [f"{rank}: {line}" for line in NEW.splitlines() for rank in (0, 1)]
    curves = read_nccl_tests("\n".join(lines) + "\n")
    assert curves == [read(NEW)] * 2


@pytest.mark.parametrize("text", ["", "bash: all_reduce_perf: command not found\n", "USAGE: all_reduce_perf\n"])
def test_no_table_is_no_curve(text: str) -> None:
    assert read_nccl_tests(text) == []


prefixes = st.sampled_from(["", "0: ", "[1,0]<stdout>:", "12: ", "[1,0]<stdout>: "])
noise = st.lists(
    st.sampled_from(
        ["vm:18:18 [0] NCCL INFO Launch mode Parallel", "", "NCCL version 2.28.9+cuda13.0", "\x00\x01", "8589934592",
         "# ", "srun: warning: 12 13 float", "WARNING: 1 2"]
    ),
    max_size=3,
)  # fmt: skip


@given(text=st.sampled_from([OLD, NEW, STAMPED, PER_ITERATION]), prefix=prefixes, data=st.data())
def test_prefixes_and_lines_between_change_nothing(text: str, prefix: str, data: st.DataObject) -> None:
    lines = []
    for line in text.splitlines():
        lines += [f"{prefix}{between}" for between in data.draw(noise)]
        lines.append(f"{prefix}{line}")
    assert read("\n".join(lines) + "\n") == read(text)


@given(text=st.sampled_from([OLD, NEW, STAMPED, PER_ITERATION]), data=st.data())
def test_what_is_cut_off_gives_no_number(text: str, data: st.DataObject) -> None:
    cut = text[: data.draw(st.integers(0, len(text)))]
    curves = read_nccl_tests(cut)
    whole = read(text)
    points = curves[0].points if curves else ()
    assert points == whole.points[: len(points)]
    rows = [line for line in cut.splitlines(keepends=True) if line.endswith("\n") and re.match(r" +\d", line)]
    assert len(points) == len(rows)
    if curves and curves[0].complete:
        assert curves[0].average_busbw == whole.average_busbw


@given(text=st.sampled_from([OLD, NEW, PER_ITERATION]), data=st.data())
def test_a_byte_that_is_lost_makes_no_other_number_in_silence(text: str, data: st.DataObject) -> None:
    """A digit less in a time or in algbw does not go through: size, time and algbw have to agree."""
    row = next(re.finditer(r"^ +(8589934592) .*$", text, re.MULTILINE))
    place = data.draw(st.integers(row.start(1), row.end() - 1))
    assume(text[place] != " ")
    curve = read(text[:place] + text[place + 1 :])
    before = read(text)
    if curve.unreadable == 0 and (damaged := curve.at(8 * GIB)) is not None:
        for one, other in zip(damaged.timings, at(before, 8 * GIB), strict=True):
            assert one.time_us == pytest.approx(other.time_us, rel=1e-3)
            assert one.algbw == pytest.approx(other.algbw, rel=1e-3)


@given(st.text(alphabet="0123456789 .#eNsize count type\n\r:[],<>stdout-", max_size=300))
def test_any_text_is_read_without_an_error(text: str) -> None:
    read_nccl_tests(text)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """What one program printed, and the file it wrote."""
    folder = standin.install(tmp_path_factory.mktemp("nccl-tests"), "reduce_scatter")
    file = folder / "result.json"
    command = [str(folder / "reduce_scatter_perf"), "-g", "4", "-b", "64", "-e", "4194304", "-f", "4", "-J", str(file)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout, file.read_text()


def test_the_file_says_what_was_printed_with_all_digits(written: tuple[str, str]) -> None:
    printed, told = read(written[0]), read_nccl_tests_json(written[1])
    assert (told.collective, told.ranks, told.nodes, told.complete) == ("reduce_scatter", 4, 1, True)
    assert [point.size for point in told.points] == [point.size for point in printed.points]
    assert printed.collective == told.collective
    for one, other in zip(told.points, printed.points, strict=True):
        assert one.out_of_place is not None
        assert one.out_of_place.busbw == pytest.approx(standin.busbw("reduce_scatter", one.size, 4))
        assert other.out_of_place is not None
        assert other.out_of_place.busbw == pytest.approx(one.out_of_place.busbw, abs=0.006)
        assert (other.redop, other.dtype, other.count) == (one.redop, one.dtype, one.count)


def test_numbers_that_are_none_in_a_file(written: tuple[str, str]) -> None:
    """`nan` is no time, nor is one not of its speed, so the row is counted; a count that is null was not checked."""
    data = json.loads(written[1])
    data["results"][0]["out_of_place"]["time"] = "nan"
    data["results"][1]["in_place"]["nwrong"] = None
    data["results"][2]["in_place"] = None
    del data["results"][3]["size"]
    curve = read_nccl_tests_json(json.dumps(data))
    assert (curve.unreadable, len(curve.points)) == (2, len(data["results"]) - 2)
    assert curve.points[0].in_place is not None
    assert curve.points[0].in_place.wrong is None
    assert curve.points[1].in_place is None
    data = json.loads(written[1])
    data["results"][-1]["in_place"]["time"] *= 0.9
    curve = read_nccl_tests_json(json.dumps(data))
    assert (curve.unreadable, len(curve.points)) == (1, len(data["results"]) - 1)


@pytest.mark.parametrize(("keys", "value", "why"), [
    (("results", 9, "out_of_place", "bus_bw"), 90.0, "its busbw is 90 GB/s"),
    (("average_bus_bandwidth", "bandwidth"), 50.0, "its average bus bandwidth is 50 GB/s"),
    (("average_bus_bandwidth", "bandwidth"), "nan", "its average bus bandwidth is 'nan'"),
    (("out_of_bounds", "okay"), "false", "it reports 0 values out of bounds, and calls that okay: false"),
    (("config", "ngpus"), 2, "on 2 ranks"),
])  # fmt: skip
def test_a_file_that_contradicts_itself_is_doubted(
    written: tuple[str, str], keys: tuple[str | int, ...], value: object, why: str
) -> None:
    data = json.loads(written[1])
    assert read_nccl_tests_json(written[1]).doubt is None
    place: Any = data
    for key in keys[:-1]:
        place = place[key if not isinstance(key, int) else -1]
    place[keys[-1]] = value
    doubt = known(read_nccl_tests_json(json.dumps(data)).doubt)
    assert why in doubt


@pytest.mark.parametrize("key", ["end_time", "out_of_bounds", "average_bus_bandwidth"])
def test_a_file_without_its_end_is_incomplete(written: tuple[str, str], key: str) -> None:
    data = json.loads(written[1])
    del data[key]
    assert not read_nccl_tests_json(json.dumps(data)).complete


@given(data=st.data())
def test_a_file_that_was_cut_off_is_none(written: tuple[str, str], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(written[1]) - 1))
    with pytest.raises(Unreadable):
        read_nccl_tests_json(written[1][:cut])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(
    st.sampled_from(["results", "config", "args", "out_of_bounds", "average_bus_bandwidth", "end_time"]),
    json_values,
))  # fmt: skip
def test_any_json_is_read_without_an_error(data: dict[str, object]) -> None:
    assert read_nccl_tests_json(json.dumps(data)).points == ()


@pytest.mark.parametrize(
    "data", [{"out_of_bounds": {"count": 0, "okay": []}}, {"config": {"devices": 3}}, {"config": {"devices": {"a": 1}}}]
)
def test_values_of_another_kind_are_none(data: dict[str, object]) -> None:
    curve = read_nccl_tests_json(json.dumps(data))
    assert (curve.nodes, curve.doubt) == (None, None)


def test_ranks_and_types_that_nothing_has_are_damage() -> None:
    """More ranks than a float holds, and a list in the place of a type's name."""
    place = {"time": "1", "alg_bw": "1", "bus_bw": "1", "nwrong": 0}
    row = {"size": 8, "count": 2, "redop": "sum", "out_of_place": place, "in_place": place}
    config = {"devices": [{}], "nthreads": 10**400, "ngpus": 1}
    curve = read_nccl_tests_json(json.dumps({"results": [{**row, "type": ["float"]}], "config": config}))
    assert (curve.ranks, curve.points, curve.unreadable) == (None, (), 1)


def test_the_stand_in_knows_no_option_that_the_real_ones_do_not() -> None:
    command = [sys.executable, standin.__file__, "all_reduce_perf", "-j", "1"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "invalid option 'j'")
