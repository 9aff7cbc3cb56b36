"""Makes the settings of a session from the options, the system's file and the cluster that is here."""

from collections.abc import Iterable
from pathlib import Path

from pytest_llmbench.cluster import settings as cluster_settings
from pytest_llmbench.cluster.quarantine import read_quarantine
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.system import SYSTEMS, load_system
from pytest_llmbench.core.extensions import Extensions
from pytest_llmbench.plugin.options import Options


def settings_of(options: Options) -> Settings:
    """Resolve the options. Nodes in quarantine are excluded in addition to those that the user excludes.

    Raises ConfigError if two options contradict each other, or one names something that is missing.
    """
    slurm = ({"partition": options.partition} if options.partition is not None else {}) | {**options.slurm}
    if barred := read_quarantine(options.quarantine):
        slurm["exclude"] = ",".join(filter(None, (slurm.get("exclude"), *barred)))
    replay = options.replay
    logs = replay.folder if replay is not None else None
    system_name, cluster = cluster_settings.resolve_cluster(options.cluster, options.system, logs)
    system = load_system(system_name, with_installed(options.systems, SYSTEMS))
    cluster = cluster or system.cluster
    nodes = options.nodes
    if nodes is None and cluster == "slurm":
        nodes = cluster_settings.existing_nodes()
    held = cluster != "slurm" or nodes is not None or cluster_settings.existing_allocation() is not None
    settings = Settings(
        system=system,
        cluster=cluster,
        allocation=options.allocation or ("session" if held else "run"),
        run_dir=options.run_dir,
        nodes=nodes,
        nodes_per_run=options.nodes_per_run,
        gpus_per_node=options.gpus_per_node,
        time_min=options.time,
        max_wait_min=options.max_wait,
        repeat=options.repeat,
        max_runs=options.max_runs,
        budget=options.budget,
        retries=options.retries,
        first_run_alone=options.first_run_alone == "yes",
        replay=logs,
        as_recorded=replay is not None and replay.as_recorded,
        rerun=options.inconclusive == "rerun",
        scale=options.scale,
        slurm=slurm,
        gate=options.gate,
        quarantine=options.quarantine,
        early_verdict=options.early_verdict,
        heartbeat_timeout=options.heartbeat_timeout,
        simulate=options.simulate,
    )
    cluster_settings.check(settings)
    return settings


def with_installed(own: Iterable[Path], installed: Extensions[Path]) -> list[Path]:
    """Folders of YAML files: those that packages bring, then the user's own."""
    return list(dict.fromkeys([*installed.usable().values(), *own]))
