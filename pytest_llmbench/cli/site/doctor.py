"""`llmbench doctor`: what a login node lacks."""

import typer

from pytest_llmbench.cli.output import AsJson, print_json
from pytest_llmbench.core.text import harmless


def examine_machine(*, as_json: AsJson = False) -> None:
    """Examine this login node for the tests of this folder, and show the command that gets each missing part.

    It exits with 1 where a needed part is missing or wrong.
    """
    from pytest_llmbench.cli.site.examination import examine  # noqa: PLC0415 - pytest and all engines

    found = examine()
    if as_json:
        print_json([each.plain for each in found])
    else:
        for each in found:
            typer.echo(harmless("\n".join(each.lines)))
    if any(each.needed and each.state != "ok" for each in found):
        raise typer.Exit(1)
