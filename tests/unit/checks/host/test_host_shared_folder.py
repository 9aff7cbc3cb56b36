"""The shared folder: a real node that sees another one."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pytest_llmbench.checks.base import Answer, CheckSettings, Probe, get_check
from pytest_llmbench.checks.host.folders import find_strangers
from pytest_llmbench.checks.host.nodes.folders import SharedView
from pytest_llmbench.core.files import write_text
from tests.support.fleet import ProcessFleet, cpu_site, mount_of_kind


class Astray(ProcessFleet):
    """Nodes of which the last has mounted something else."""

    def run(self, probes: Sequence[Probe]) -> list[list[Answer]]:
        """Run the probe; what is the shared folder for the others is another on the last."""
        (probe,) = probes
        other = {**probe.config, "folder": str(self.folder / "elsewhere")}
        right, astray = super().run(
            [
                replace(probe, hosts=self.hosts[:-1]),
                replace(probe, hosts=self.hosts[-1:], config=other),
            ]
        )
        return [[*right, *astray]]


def test_a_node_that_sees_another_folder_is_found(tmp_path: Path) -> None:
    # From an earlier session, on another file system with the same path.
    write_text(tmp_path / "elsewhere" / "head", "old")
    fleet = Astray(site=cpu_site(3), hosts=("a", "b", "c"), folder=tmp_path)
    (finding,) = get_check("shared_folder").run(fleet, CheckSettings()).findings
    assert (finding.host, finding.kind) == ("c", "other_folder")
    assert "does not hold what this machine wrote into it" in finding.message
    assert finding.severity.fails


def test_a_node_whose_file_never_comes_is_found() -> None:
    facts = {host: SharedView(read="token", mount=mount_of_kind("nfs4")) for host in ("a", "b", "c")}
    found = [*find_strangers(facts, "token", {"a": "token a", "b": None, "c": "old c"}, Path("/shared"))]
    assert [finding.host for finding in found] == ["b", "c"]
    assert "does not see what the node wrote into /shared (nfs4 there)" in found[0].message
