"""The options of sbatch that a user may give as `--slurm KEY=VALUE`."""

from pytest_llmbench.core.errors import ConfigError, unknown

# A system's file may give these for all jobs.
SLURM_DEFAULTS = ("partition", "account", "qos", "reservation", "constraint")
SLURM_OPTIONS = (*SLURM_DEFAULTS, "nodelist", "exclude", "comment")

# Options of sbatch that decide what is measured, and the option of ours that sets each.
_INSTEAD = {
    "partition": "--partition",
    "nodes": "--nodes",
    "time": "--time",
    "gpus-per-node": "--gpus-per-node",
    "gpus": "--gpus-per-node",
    "gres": "--gpus-per-node",
}
_SET_BY_US = {
    "array", "chdir", "cpus-per-task", "dependency", "error", "exclusive", "export", "gpu-bind", "job-name",
    "kill-on-bad-exit", "mem", "no-kill", "no-requeue", "ntasks", "ntasks-per-node", "open-mode", "output",
    "overcommit", "oversubscribe", "requeue", "signal", "wait", "wckey", "wrap",
}  # fmt: skip


def parse_pair(text: str) -> tuple[str, str]:
    """Read `KEY=VALUE`.

    Raises ConfigError if the key is unknown or set by this package itself, or the value is unfit for a script.
    """
    key, equals, value = text.partition("=")
    key, value = key.strip(), value.strip()
    if key in _INSTEAD:
        raise ConfigError(f"{key} has an option of its own: write {_INSTEAD[key]}")
    if key.replace("_", "-") in _SET_BY_US:
        raise ConfigError(f"{key} cannot be given: llmbench sets it for each of its jobs")
    legal = [name for name in SLURM_OPTIONS if name not in _INSTEAD]
    if key not in legal:
        raise ConfigError(unknown("option of sbatch", key, legal))
    if not equals or not value or not value.isprintable():
        raise ConfigError(f"{text!r} must be KEY=VALUE with printable characters, such as account=NAME")
    return key, value
