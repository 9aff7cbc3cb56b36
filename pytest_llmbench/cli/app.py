"""The command `llmbench`: its subcommands, and how an error of any of them ends it."""

import sys
from typing import Annotated

import typer

from pytest_llmbench.cli import compare, history
from pytest_llmbench.cli.bundle import bundle, keygen, verify
from pytest_llmbench.cli.calibrate import PASSED_ON, calibrate_threshold
from pytest_llmbench.cli.export import export
from pytest_llmbench.cli.names.list import list_names
from pytest_llmbench.cli.names.schema import print_schema
from pytest_llmbench.cli.names.validate import validate_files
from pytest_llmbench.cli.reproduce import reproduce
from pytest_llmbench.cli.sessions.plan import FOR_PYTEST, plan_session
from pytest_llmbench.cli.sessions.prune import prune_sessions
from pytest_llmbench.cli.sessions.report import REPORT, report_session
from pytest_llmbench.cli.sessions.resume import resume_session
from pytest_llmbench.cli.sessions.watch import watch_session
from pytest_llmbench.cli.site.doctor import examine_machine
from pytest_llmbench.cli.site.init import make_site
from pytest_llmbench.core.errors import LLMBenchError

app = typer.Typer(
    name="llmbench",
    help="Decide, with evidence, whether a GPU cluster trains large language models as fast as it should.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version  # noqa: PLC0415  # costs a start of every command else

        typer.echo(f"pytest-llmbench {version('pytest-llmbench')}")
        raise typer.Exit


@app.callback()
def _of_all(
    *,
    version: Annotated[  # its callback has done the work
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Take the options of every subcommand."""


# In the list of commands each has a line of a terminal of 80 columns; its own help says more.
app.command("init", short_help="Make the folder of a site: ini, system, recipe, tests, CI.")(make_site)
app.command("doctor", short_help="Say what this login node lacks, and how to get it.")(examine_machine)
app.command("list", short_help="List recipes, systems, checks, engines, statistics.")(list_names)
app.command("validate", short_help="Show every fault of recipe and system files.")(validate_files)
app.command("schema", short_help="Print the JSON Schema of a kind of file.")(print_schema)
app.command("plan", short_help="Show what pytest would run. Nothing is submitted.", context_settings=FOR_PYTEST)(
    plan_session
)
app.command("resume", short_help="Go on with a session whose process died.", context_settings=FOR_PYTEST)(
    resume_session
)
app.command("watch", short_help="Follow a session from another terminal.")(watch_session)
app.command("report", short_help="Write the HTML report of a session.", help=REPORT)(report_session)
app.command("prune", short_help="Show old session folders; delete them with --yes.")(prune_sessions)
app.command("calibrate", short_help="Make a threshold from good runs.", context_settings=PASSED_ON)(calibrate_threshold)
app.add_typer(history.app, name="history", short_help="Keep the records of many sessions, and ask them.")
app.command("compare", short_help="Compare every number of two sessions.")(compare.compare)
app.command(short_help="Make a key to sign bundles with.")(keygen)
app.command(short_help="Put a session into one signed file.")(bundle)
app.command(short_help="Verify a bundle: bytes, signature, numbers, verdicts.")(verify)
app.command(short_help="Write the numbers of a session for Prometheus, or as CSV.")(export)
app.command(short_help="Print the command that makes a run again.")(reproduce)


def main() -> None:
    """Run `llmbench`. Wrong input ends it with exit code 2, and a line for each fault."""
    try:
        app()
    except (LLMBenchError, OSError) as error:
        told = str(error)
        if isinstance(error, OSError) and error.filename is not None:
            told = f"{error.filename}: {error.strerror}"
        sys.stderr.write("".join(f"error: {line}\n" for line in told.splitlines()))
        sys.exit(2)
