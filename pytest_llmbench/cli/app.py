"""The command `llmbench`: its subcommands, and how an error of any of them ends it."""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from pytest_llmbench.cli import calibrating, history, names, sessions
from pytest_llmbench.cli.bundle import bundle, keygen, verify
from pytest_llmbench.core.errors import LLMBenchError

app = typer.Typer(
    name="llmbench",
    help="Decide, with evidence, whether a GPU cluster trains large language models as fast as it should.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version  # noqa: PLC0415  # other commands start sooner

        typer.echo(f"pytest-llmbench {version('pytest-llmbench')}")
        raise typer.Exit


@app.callback()
def _common(
    *,
    version: Annotated[  # its callback has done the work
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Take the options of every subcommand."""


# In the list of commands each has a line of a terminal of 80 columns; its own help has more.
app.command("init", short_help="Make the folder of a site: ini, system, recipe, tests, CI.")(names.make_site)
app.command("doctor", short_help="Show what this login node lacks, and how to get it.")(names.examine_machine)
app.command("list", short_help="List recipes, systems, checks, engines, statistics.")(names.list_names)
app.command("validate", short_help="Show every fault of recipe and system files.")(names.validate_files)
app.command("watch", short_help="Follow a session from another terminal.")(sessions.watch_session)
app.command("report", short_help="Write a session as HTML, for Prometheus, or as CSV.")(sessions.report_session)
app.command("prune", short_help="Show old session folders; delete them with --yes.")(sessions.prune_sessions)
app.command("calibrate", short_help="Make a threshold from good runs.")(calibrating.calibrate_threshold)
app.command("compare", short_help="Compare every number of two sessions.")(history.compare)
app.add_typer(history.app, name="history", short_help="Keep the records of many sessions, and query them.")
app.command(short_help="Make a key to sign bundles with.")(keygen)
app.command(short_help="Put a session into one signed file.")(bundle)
app.command(short_help="Verify a bundle: bytes, signature, numbers, verdicts.")(verify)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `llmbench` with these arguments, or those of this process.

    Wrong input ends it with exit code 2, and a line for each fault.
    """
    try:
        app(arguments)
    except (LLMBenchError, OSError) as error:
        message = str(error)
        if isinstance(error, OSError) and error.filename is not None:
            message = f"{error.filename}: {error.strerror}"
        sys.stderr.write("".join(f"error: {line}\n" for line in message.splitlines()))
        sys.exit(2)
