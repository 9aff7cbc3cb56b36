"""The command `llmbench`: its subcommands, and how an error of any of them ends it."""

import sys
from typing import Annotated

import typer

from pytest_llmbench.cli.bundle import bundle, keygen, verify
from pytest_llmbench.cli.export import export
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


app.command()(keygen)
app.command()(bundle)
app.command()(verify)
app.command()(export)


def main() -> None:
    """Run `llmbench`. Wrong input is said in one line for each fault, with exit code 2."""
    try:
        app()
    except (LLMBenchError, OSError) as error:
        sys.stderr.write("".join(f"error: {line}\n" for line in str(error).splitlines()))
        sys.exit(2)
