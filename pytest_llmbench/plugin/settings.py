"""The settings of a session: what the options, the system's file and the cluster that is here come to."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from pytest_llmbench.cluster import settings as cluster_settings
from pytest_llmbench.cluster.heartbeat import TTL_S
from pytest_llmbench.cluster.quarantine import read_quarantine
from pytest_llmbench.cluster.settings import SLURM_OPTIONS, Settings
from pytest_llmbench.cluster.system import SYSTEMS, load_system
from pytest_llmbench.core.extensions import Extensions
from pytest_llmbench.core.record.records import AllocationMode
from pytest_llmbench.plugin import options
from pytest_llmbench.plugin.history import consult


def settings_of(config: pytest.Config, run_dir: Path) -> Settings:
    """Resolve the options.

    Args:
        config: pytest's.
        run_dir: the folder of all sessions' folders.

    Raises:
        ConfigError: an option cannot be meant.
    """
    replay, quarantine = (_path(config, name) for name in ("replay", "quarantine"))
    asked = options.value(config, "cluster") or "auto"
    system_name, cluster = cluster_settings.resolve_cluster(asked, options.value(config, "system"), replay)
    system = load_system(system_name, folders_of(config, "systems", SYSTEMS))
    nodes = options.value(config, "nodes")
    if nodes is None and (cluster or system.cluster) == "slurm":
        nodes = cluster_settings.existing_nodes()
    avoided = consult(config)
    settings = Settings(
        system=system,
        cluster=cluster or system.cluster,
        allocation=options.value(config, "allocation") or _default_allocation(cluster or system.cluster, nodes),
        run_dir=run_dir,
        nodes=nodes,
        nodes_per_run=options.value(config, "nodes-per-run"),
        gpus_per_node=options.value(config, "gpus-per-node"),
        time_min=options.value(config, "time"),
        max_wait_min=options.value(config, "max-wait"),
        repeat=options.value(config, "repeat"),
        max_runs=options.value(config, "max-runs"),
        budget=options.value(config, "budget"),
        retries=options.value(config, "retries") or 0,
        first_run_alone=options.flag(config, "first_run_alone"),
        replay=replay,
        rerun=options.value(config, "inconclusive") == "rerun",
        scale=options.value(config, "scale") or "full",
        slurm=_slurm_options(config, quarantine, avoided),
        gate=options.value(config, "gate") or "auto",
        nccl=options.flag(config, "nccl"),
        quarantine=quarantine,
        avoided=avoided,
        drain=options.value(config, "drain"),
        early_verdict=options.flag(config, "early_verdict"),
        heartbeat_timeout=options.value(config, "heartbeat-timeout") or TTL_S,
        simulate=options.value(config, "simulate"),
    )
    cluster_settings.check(settings)
    return settings


def folders_of(config: pytest.Config, option: str, installed: Extensions[Path]) -> list[Path]:
    """Folders of YAML files: those that packages bring, then the user's own."""
    return list(dict.fromkeys([*installed.usable().values(), *options.folders(config, option)]))


def _path(config: pytest.Config, name: str) -> Path | None:
    path = options.value(config, name)
    return None if path is None else options.from_here(config, path)


def _slurm_options(config: pytest.Config, quarantine: Path | None, avoided: Iterable[str]) -> dict[str, str]:
    """Options of sbatch; it excludes nodes in quarantine and those to avoid as well as those that the user excludes."""
    told = {name: text for name in SLURM_OPTIONS if (text := options.value(config, name)) is not None}
    barred = [*dict.fromkeys([*(read_quarantine(quarantine) if quarantine is not None else ()), *avoided])]
    if barred:
        told["exclude"] = ",".join([*([told["exclude"]] if "exclude" in told else []), *barred])
    return told


def _default_allocation(cluster: str, nodes: int | None) -> AllocationMode:
    held = cluster != "slurm" or nodes is not None or cluster_settings.existing_allocation() is not None
    return "session" if held else "run"
