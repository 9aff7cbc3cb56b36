"""PCI addresses in all their spellings."""

import pytest

from pytest_llmbench.readers.pci import pci_address


@pytest.mark.parametrize(
    "text", ["0000:1b:00.0", "00000000:1B:00.0", "PCI:0000:1b:00", "0000:1b:00", "1b:00.0", "PCI:0000:1B:00 GPU-I:02"]
)
def test_all_spellings_are_one(text: str) -> None:
    assert pci_address(text) == "0000:1b:00.0"


def test_a_domain_counts_and_other_words_stay() -> None:
    """Azure's devices are in domains of their own."""
    assert pci_address("0000000A:00:00.0") == "000a:00:00.0"
    assert pci_address(" no address ") == "no address"
