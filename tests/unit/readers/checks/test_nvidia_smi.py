"""Reading nvidia-smi's XML: the tags of old and new drivers, and what is not known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.checks.gpu.nvidia_smi import Process, read_smi
from pytest_llmbench.core.errors import RunError
from tests.standins.nvidia_smi import bus, smi_xml

_HEALTHY = smi_xml(1)


@pytest.mark.parametrize("driver", ["450.80.02", "470.57.02", "535.54.03", "590.48.01"])
def test_the_tags_of_every_driver_give_the_same_facts(driver: str) -> None:
    smi = read_smi(smi_xml(2, driver=driver))
    assert (smi.driver, smi.warnings, [gpu.bus for gpu in smi.gpus]) == (driver, "", [bus(0), bus(1)])
    for gpu in smi.gpus:
        assert gpu.slowdowns == ("gpu_idle",)
        assert (gpu.power_limit_w, gpu.default_power_limit_w) == (700.0, 700.0)
        assert (gpu.uncorrectable, gpu.total_uncorrectable, gpu.correctable) == (0.0, 0.0, 0.0)
        assert (gpu.link_width, gpu.max_link_gen, gpu.memory_total_mib) == (16.0, 5.0, 81559.0)
        assert (gpu.mig, gpu.persistence, gpu.ecc, gpu.lost, gpu.processes) == (False, True, True, "", ())


@pytest.mark.parametrize(
    "text", ["N/A", "[N/A]", "Not Supported", "[Not Supported]", "", "Requested functionality has been deprecated"]
)
def test_what_is_not_known_is_none_and_never_zero(text: str) -> None:
    changes = {
        **{f">{old}<": f">{text}<" for old in ("16x", "Enabled", "No", "700.00 W", "P0", "Not Active", "1 MiB")},
        "<dram_uncorrectable>0<": f"<dram_uncorrectable>{text}<",
    }
    (gpu,) = read_smi(smi_xml(1, changes={0: changes})).gpus
    unknown = (
        gpu.link_width, gpu.max_link_width, gpu.persistence, gpu.ecc, gpu.remap_pending, gpu.remap_failed,
        gpu.sram_threshold_exceeded, gpu.power_limit_w, gpu.performance_state, gpu.uncorrectable,
        gpu.total_uncorrectable, gpu.slowdowns, gpu.memory_used_mib,
    )  # fmt: skip
    assert unknown == (None,) * len(unknown)


def test_errors_of_all_memories_add_up() -> None:
    changes = {
        "<sram_uncorrectable_parity>0<": "<sram_uncorrectable_parity>1<",
        "<sram_uncorrectable_secded>0<": "<sram_uncorrectable_secded>2<",
        "<dram_uncorrectable>0<": "<dram_uncorrectable>4<",
        "<dram_correctable>0<": "<dram_correctable>8<",
    }
    (gpu,) = read_smi(smi_xml(1, changes={0: changes})).gpus
    assert (gpu.uncorrectable, gpu.correctable) == (7.0, 8.0)


def test_a_lost_gpu_and_warnings_are_seen() -> None:
    warning = "WARNING: infoROM is corrupted at gpu 0000:10:00.0"
    smi = read_smi(smi_xml(1, changes={0: {">700.00 W<": ">[Unknown Error]<"}}) + warning + "\n")
    assert (smi.gpus[0].lost, smi.gpus[0].power_limit_w, smi.warnings) == ("[Unknown Error]", None, warning)


def test_processes_are_listed() -> None:
    listed = (
        "<processes><process_info><pid>4711</pid><type>C</type><process_name>/usr/bin/python3</process_name>"
        "<used_memory>512 MiB</used_memory></process_info>"
    )
    (gpu,) = read_smi(smi_xml(1, changes={0: {"<processes>": listed}})).gpus
    assert gpu.processes == (Process(pid=4711, kind="C", name="/usr/bin/python3", memory_mib=512),)


@given(st.integers(0, _HEALTHY.rindex("</nvidia_smi_log>") + len("</nvidia_smi_log>") - 1))
def test_a_document_that_was_cut_off_is_refused(end: int) -> None:
    with pytest.raises(RunError, match="whole"):
        read_smi(_HEALTHY[:end])


@given(st.data())
def test_a_document_with_a_hole_never_gives_other_numbers(data: st.DataObject) -> None:
    """A part may be lost: then it is refused, or what is left has fewer facts, and never an error count of its own."""
    start = data.draw(st.integers(0, len(_HEALTHY)))
    end = data.draw(st.integers(start, len(_HEALTHY)))
    try:
        smi = read_smi(_HEALTHY[:start] + _HEALTHY[end:])
    except RunError:
        return
    assert [gpu.uncorrectable in (0.0, None) for gpu in smi.gpus] == [True]


@given(st.text())
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(RunError):
        read_smi(text)


def test_a_gpu_that_is_not_listed_and_two_outputs_in_one_are_refused() -> None:
    with pytest.raises(RunError, match="attached_gpus 2, and lists 1"):
        read_smi(_HEALTHY.replace("<attached_gpus>1<", "<attached_gpus>2<"))
    bad = "<ecc_errors><volatile><dram_uncorrectable>3</dram_uncorrectable></volatile></ecc_errors></gpu>"
    with pytest.raises(RunError, match="lists ecc_errors twice for GPU"):
        read_smi(_HEALTHY.replace("</gpu>", bad))
