"""`llmbench calibrate` and `llmbench project`: the programs of those names in the package."""

import typer

# They have options and a help of their own.
PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def calibrate_threshold(context: typer.Context) -> None:
    """Make a threshold from the records of good runs, as a system's file takes it."""
    from pytest_llmbench.calibrate import main  # noqa: PLC0415 - all engines

    raise typer.Exit(main(context.args, prog=context.command_path))


def project_speed(context: typer.Context) -> None:
    """Project the speed of a recipe on many nodes from measured slices of it."""
    from pytest_llmbench.project import main  # noqa: PLC0415 - all engines

    raise typer.Exit(main(context.args, prog=context.command_path))
