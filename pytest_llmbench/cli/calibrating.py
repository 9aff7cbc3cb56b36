"""`llmbench calibrate`: a threshold, or golden losses, from the records of good runs."""

import json
from pathlib import Path
from typing import Annotated

import typer
import yaml

from pytest_llmbench.cli.output import AsJson
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.files import write_text
from pytest_llmbench.core.quantity import Quantity


def _share(text: str) -> float:
    try:
        share = Quantity(text)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error
    if share.dimension != "fraction" or not 0.0 < share.base < 1.0:
        raise typer.BadParameter(f"{text} is not a share between 0 and 100 %, such as '5 %'")
    return share.base


def calibrate_threshold(  # noqa: PLR0913 - a parameter for each option
    records: Annotated[list[Path], typer.Argument(metavar="RECORD...", help="Run records, or folders of reports.")],
    *,
    recipe: Annotated[str | None, typer.Option(metavar="NAME", help="Take this recipe's runs alone.")] = None,
    statistic: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Statistic of speed, repeatable; else the recipe's own.")
    ] = None,
    less: Annotated[
        float | None,
        typer.Option(parser=_share, metavar="SHARE", help="A margin such as '5 %', not the 99 % prediction limit."),
    ] = None,
    too_fast: Annotated[
        float | None,
        typer.Option(parser=_share, metavar="SHARE", help="Bound the other side too, this far from the mean."),
    ] = None,
    losses: Annotated[bool, typer.Option("--losses", help="Write golden losses as JSON, and no threshold.")] = False,
    as_json: AsJson = False,
    name: Annotated[str | None, typer.Option(help="Name of the reference, not calibrated_STATISTIC_GPUS.")] = None,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="A new file to write it to.")] = None,
) -> None:
    """Make a threshold from the records of good runs, as a system's file takes it."""
    from pytest_llmbench.calibrate import calibrate_losses, calibrate_references, read_runs  # noqa: PLC0415  # all engines

    if output is not None and output.exists():
        raise ConfigError(f"{output} exists already: give another --output")
    runs = read_runs(records, recipe)
    system, of_recipe = runs[0].record.system, runs[0].record.recipe.name
    if losses:
        golden, warnings = calibrate_losses(runs)
        text = f"{golden.model_dump_json(indent=1)}\n"
    else:
        references, warnings = calibrate_references(runs, statistic or (), less, too_fast, name)
        mode = "json" if as_json else "python"
        block = {of_recipe: [reference.model_dump(mode=mode, exclude_defaults=True) for reference in references]}
        if as_json:
            text = f"{json.dumps({'system': system, 'references': block, 'warnings': warnings}, indent=1)}\n"
        else:
            text = yaml.safe_dump(
                {"references": block}, sort_keys=False, allow_unicode=True, width=110, default_flow_style=None
            )
            text = f"# For the file of system {system}; or put the entry below the recipe.\n{text}"
    if output is not None:
        write_text(output, text)
    typer.echo("".join(f"warning: {line}\n" for line in warnings), nl=False, err=True)
    if output is None:
        typer.echo(text, nl=False)
