"""Reading nvidia-smi: XML of old and new drivers, the state of NVLinks, and PCI addresses in all their spellings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.checks.gpu.nvidia_smi import Process, read_smi
from pytest_llmbench.checks.gpu.nvlink import read_links
from pytest_llmbench.core.errors import RunError
from pytest_llmbench.readers.pci import pci_address
from tests.standins.nvidia_smi import LINKS, bus, links_text, smi_xml

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


def test_links_have_speeds_or_are_inactive() -> None:
    links = read_links(links_text(2, inactive={1: 4}))
    assert (len(links[0].active), len(links[1].active), links[1].speeds[4]) == (LINKS, LINKS - 1, None)
    assert links[0].active[0] == 26.562


@pytest.mark.parametrize("between", ["\n", " "])
def test_a_gpu_whose_links_are_all_down(between: str) -> None:
    words = "NVML: Unable to retrieve NVLink information as all links are inActive"
    assert read_links(f"GPU 0: NVIDIA A100 (UUID: GPU-1){between}{words}\n")[0].all_inactive


@pytest.mark.parametrize("answer", [
    "\nDevice does not have or support Nvlink",
    "\nNVML: Unable to retrieve NVLink information: Not Supported",
    " NVML: Unable to retrieve NVLink information: Not Supported",
])  # fmt: skip
def test_a_gpu_without_nvlink(answer: str) -> None:
    """Drivers have several answers, and some builds print it in the line of the GPU."""
    links = read_links("".join(f"GPU {gpu}: NVIDIA L40S (UUID: GPU-{gpu}){answer}\n" for gpu in range(2)))
    assert [(state.speeds, state.all_inactive) for state in links.values()] == [((), False)] * 2


@given(st.text(max_size=80))
def test_any_other_state_is_refused(text: str) -> None:
    with pytest.raises(RunError):
        read_links(text)


def test_a_link_that_is_left_out_and_a_gpu_that_is_listed_twice_are_refused() -> None:
    """The second list would hide a link that is down in the first."""
    with pytest.raises(RunError, match="Link 2"):
        read_links(links_text(1).replace("\t Link 1: 26.562 GB/s\n", ""))
    with pytest.raises(RunError, match=r"printed 'GPU 0: "):
        read_links(links_text(inactive={0: 3}) + links_text())


@pytest.mark.parametrize("line", [f"GPU {'9' * 5000}: H100", f"Link 0: {'9' * 5000} GB/s"])
def test_a_number_without_end_is_not_read(line: str) -> None:
    with pytest.raises(RunError, match="nvlink -s printed"):
        read_links(f"GPU 0: H100\n{line}\n")


@pytest.mark.parametrize(
    "text", ["0000:1b:00.0", "00000000:1B:00.0", "PCI:0000:1b:00", "0000:1b:00", "1b:00.0", "PCI:0000:1B:00 GPU-I:02"]
)
def test_all_spellings_are_one(text: str) -> None:
    assert pci_address(text) == "0000:1b:00.0"


def test_a_domain_counts_and_other_words_stay() -> None:
    """Azure's devices are in domains of their own."""
    assert pci_address("0000000A:00:00.0") == "000a:00:00.0"
    assert pci_address(" no address ") == "no address"
