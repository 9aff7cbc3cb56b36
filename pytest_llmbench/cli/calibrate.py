"""`llmbench calibrate`: the program of that name in the package."""

import typer

# It has options and a help of its own.
PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def calibrate_threshold(context: typer.Context) -> None:
    """Make a threshold from the records of good runs, as a system's file takes it."""
    from pytest_llmbench.calibrate import main  # noqa: PLC0415 - all engines

    raise typer.Exit(main(context.args, prog=context.command_path))
