"""A stand-in for a node with GPUs: programs `nvidia-smi`, `dmesg` and `journalctl` for its PATH.

They accept what the package asks them and nothing else, and print what a healthy node prints unless a test says
otherwise. The XML has the tags of the driver version that is asked for, written here from NVIDIA's documentation.
"""

import os
from collections.abc import Mapping
from pathlib import Path

BOOT = "[    0.000000] Linux version 5.15.0-1056 (gcc 11.4.0) #64-Ubuntu SMP\n"
LOADED = "[    9.120000] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.90.07\n"
LINKS = 18

_MODERN = """
\t\t<ecc_mode><current_ecc>Enabled</current_ecc><pending_ecc>Enabled</pending_ecc></ecc_mode>
\t\t<ecc_errors>
\t\t\t<volatile>
\t\t\t\t<sram_correctable>0</sram_correctable>
\t\t\t\t<sram_uncorrectable_parity>0</sram_uncorrectable_parity>
\t\t\t\t<sram_uncorrectable_secded>0</sram_uncorrectable_secded>
\t\t\t\t<dram_correctable>0</dram_correctable>
\t\t\t\t<dram_uncorrectable>0</dram_uncorrectable>
\t\t\t</volatile>
\t\t\t<aggregate>
\t\t\t\t<sram_correctable>0</sram_correctable>
\t\t\t\t<sram_uncorrectable_parity>0</sram_uncorrectable_parity>
\t\t\t\t<sram_uncorrectable_secded>0</sram_uncorrectable_secded>
\t\t\t\t<dram_correctable>0</dram_correctable>
\t\t\t\t<dram_uncorrectable>0</dram_uncorrectable>
\t\t\t\t<sram_threshold_exceeded>No</sram_threshold_exceeded>
\t\t\t</aggregate>
\t\t</ecc_errors>
\t\t<retired_pages><pending_retirement>N/A</pending_retirement></retired_pages>
\t\t<remapped_rows>
\t\t\t<remapped_row_corr>0</remapped_row_corr>
\t\t\t<remapped_row_unc>0</remapped_row_unc>
\t\t\t<remapped_row_pending>No</remapped_row_pending>
\t\t\t<remapped_row_failure>No</remapped_row_failure>
\t\t</remapped_rows>
\t\t<gpu_recovery_action>None</gpu_recovery_action>
\t\t<gpu_power_readings>
\t\t\t<current_power_limit>700.00 W</current_power_limit>
\t\t\t<default_power_limit>700.00 W</default_power_limit>
\t\t</gpu_power_readings>
\t\t<fabric><state>Completed</state><status>Success</status></fabric>
"""
_OLD = """
\t\t<ecc_mode><current_ecc>Enabled</current_ecc><pending_ecc>Enabled</pending_ecc></ecc_mode>
\t\t<ecc_errors>
\t\t\t<volatile>
\t\t\t\t<single_bit><device_memory>0</device_memory><total>0</total></single_bit>
\t\t\t\t<double_bit><device_memory>0</device_memory><total>0</total></double_bit>
\t\t\t</volatile>
\t\t\t<aggregate>
\t\t\t\t<single_bit><device_memory>0</device_memory><total>0</total></single_bit>
\t\t\t\t<double_bit><device_memory>0</device_memory><total>0</total></double_bit>
\t\t\t</aggregate>
\t\t</ecc_errors>
\t\t<retired_pages><pending_retirement>No</pending_retirement></retired_pages>
\t\t<remapped_rows>N/A</remapped_rows>
\t\t<power_readings>
\t\t\t<power_limit>700.00 W</power_limit>
\t\t\t<default_power_limit>700.00 W</default_power_limit>
\t\t\t<enforced_power_limit>700.00 W</enforced_power_limit>
\t\t</power_readings>
"""
_REASONS = ("gpu_idle", "sw_power_cap", "hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown",
            "sw_thermal_slowdown", "applications_clocks_setting")  # fmt: skip


def bus(index: int) -> str:
    """The PCI address of a GPU as sysfs and the checks write it."""
    return f"0000:{0x10 + index:02x}:00.0"


def gpu_xml(index: int, *, driver: str = "550.90.07", changes: Mapping[str, str] | None = None) -> str:
    """One `<gpu>`, with texts replaced as `changes` says; each of them has to be there."""
    major = int(driver.partition(".")[0])
    word = "event" if major >= 535 else "throttle"
    reasons = "".join(
        f"<clocks_{word}_reason_{name}>{'Active' if name == 'gpu_idle' else 'Not Active'}</clocks_{word}_reason_{name}>"
        for name in _REASONS
    )
    text = f"""\t<gpu id="0000{bus(index).upper()}">
\t\t<product_name>NVIDIA H100 80GB HBM3</product_name>
\t\t<persistence_mode>Enabled</persistence_mode>
\t\t<mig_mode><current_mig>Disabled</current_mig><pending_mig>Disabled</pending_mig></mig_mode>
\t\t<uuid>GPU-00000000-0000-0000-0000-{index:012d}</uuid>
\t\t<vbios_version>96.00.89.00.01</vbios_version>
\t\t<pci>
\t\t\t<pci_bus_id>0000{bus(index).upper()}</pci_bus_id>
\t\t\t<pci_gpu_link_info>
\t\t\t\t<pcie_gen><max_link_gen>5</max_link_gen><current_link_gen>5</current_link_gen></pcie_gen>
\t\t\t\t<link_widths>
\t\t\t\t\t<max_link_width>16x</max_link_width>
\t\t\t\t\t<current_link_width>16x</current_link_width>
\t\t\t\t</link_widths>
\t\t\t</pci_gpu_link_info>
\t\t\t<replay_counter>0</replay_counter>
\t\t</pci>
\t\t<performance_state>P0</performance_state>
\t\t<clocks_{word}_reasons>{reasons}</clocks_{word}_reasons>
\t\t<fb_memory_usage><total>81559 MiB</total><used>1 MiB</used><free>81100 MiB</free></fb_memory_usage>
{_MODERN if major >= 535 else _OLD}
\t\t<applications_clocks><graphics_clock>1980 MHz</graphics_clock></applications_clocks>
\t\t<default_applications_clocks><graphics_clock>1980 MHz</graphics_clock></default_applications_clocks>
\t\t<max_clocks><sm_clock>1980 MHz</sm_clock></max_clocks>
\t\t<processes>
\t\t</processes>
\t</gpu>
"""
    for old, new in (changes or {}).items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def smi_xml(gpus: int = 2, *, driver: str = "550.90.07", changes: Mapping[int, Mapping[str, str]] | None = None) -> str:
    """What `nvidia-smi -q -x` prints; `changes` by GPU."""
    every = "".join(gpu_xml(index, driver=driver, changes=(changes or {}).get(index)) for index in range(gpus))
    return (
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n<nvidia_smi_log>\n'
        f"\t<driver_version>{driver}</driver_version>\n\t<attached_gpus>{gpus}</attached_gpus>\n{every}</nvidia_smi_log>\n"
    )


def links_text(gpus: int = 2, *, inactive: Mapping[int, int] | None = None) -> str:
    """What `nvidia-smi nvlink -s` prints; `inactive` is the link of a GPU that is down."""
    lines: list[str] = []
    for gpu in range(gpus):
        lines.append(f"GPU {gpu}: NVIDIA H100 80GB HBM3 (UUID: GPU-00000000-0000-0000-0000-{gpu:012d})")
        for link in range(LINKS):
            dead = (inactive or {}).get(gpu) == link
            lines.append(f"\t Link {link}: {'<inactive>' if dead else '26.562 GB/s'}")
    return "\n".join(lines) + "\n"


def gpu_node(
    folder: Path,
    *,
    xml: str | None = None,
    links: str | None = None,
    log: str | None = BOOT + LOADED,
    code: int = 0,
    errors: str = "",
) -> dict[str, str]:
    """Make the programs of a node in a folder, and return the environment that finds them first.

    Args:
        folder: of the node.
        xml: what `nvidia-smi -q -x` prints; of two healthy GPUs, when not given.
        links: what `nvidia-smi nvlink -s` prints; likewise.
        log: what `dmesg` prints; None where nobody may read the log.
        code: how nvidia-smi ends.
        errors: what `nvidia-smi -q -x` prints on its error output.
    """
    folder.mkdir(parents=True)
    (folder / "xml").write_text(smi_xml() if xml is None else xml, encoding="utf-8")
    (folder / "links").write_text(links_text() if links is None else links, encoding="utf-8")
    (folder / "log").write_text(log or "", encoding="utf-8")
    (folder / "errors").write_text(errors, encoding="utf-8")
    smi = f"""case "$*" in
"-q -x") cat {folder}/xml; cat {folder}/errors >&2; exit {code};;
"nvlink -s") cat {folder}/links; exit {code};;
*) echo "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help."; exit 2;;
esac"""
    refused = "echo 'dmesg: read kernel buffer failed: Operation not permitted' >&2; exit 1"
    dmesg = f"[ $# = 0 ] || exit 2\n{refused if log is None else f'cat {folder}/log'}"
    for name, body in (("nvidia-smi", smi), ("dmesg", dmesg), ("journalctl", "exit 1")):
        path = folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        path.chmod(0o755)
    return {"PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
