"""Reading the state of NVLinks, and PCI addresses in all their spellings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.checks.gpu.nvlink import read_links
from pytest_llmbench.core.errors import RunError
from pytest_llmbench.readers.pci import pci_address
from tests.standins.nvidia_smi import LINKS, links_text


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
def test_any_other_text_is_refused(text: str) -> None:
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
