"""`llmbench keygen`, `llmbench bundle` and `llmbench verify`: evidence to hand over, and its verification."""

from pathlib import Path
from typing import Annotated

import typer

from pytest_llmbench.cli.output import RUN_DIR, AsJson, AsRecorded, law_of_today, print_facts
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.files import write_text


def keygen(
    output: Annotated[Path, typer.Option("--output", help="File of the private key.")] = Path("llmbench.pem"),
    *,
    as_json: AsJson = False,
) -> None:
    """Make a key to sign bundles with: FILE.pem, which only you can read, and FILE.pub.pem, which you give away."""
    from pytest_llmbench.evidence.attestation import make_key, read_public_key  # noqa: PLC0415  # a start costs less

    public = make_key(output)
    name = read_public_key(public).keyid
    lines = (
        f"private key {output}: keep it where only you can read it",
        f"public key  {public}: give it to those who verify your bundles, but not together with them",
        f"key id      {name}",
    )
    print_facts({"private_key": str(output), "public_key": str(public), "key_id": name}, lines, as_json=as_json)


def bundle(
    session: Annotated[Path, typer.Argument(metavar="SESSION", help="Folder of the session, or its id in reports.")],
    key: Annotated[
        Path | None, typer.Option("--key", help="Private key to sign with; llmbench keygen makes one.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="File to write; without it, SESSION.llmbench.tar in this folder.")
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option("--certificate", help="Write the certificate into this file as well.")
    ] = None,
    no_secret: Annotated[
        list[str] | None, typer.Option("--no-secret", help="File that only seems to have a secret in it.")
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Put a session into one signed file: logs, scripts, records, JUnit report, and a certificate."""
    from pytest_llmbench.evidence.attestation import read_private_key  # noqa: PLC0415  # likewise
    from pytest_llmbench.evidence.bundle import make_bundle  # noqa: PLC0415  # likewise
    from pytest_llmbench.evidence.certificate import make_certificate  # noqa: PLC0415  # likewise
    from pytest_llmbench.session.folder import find_session  # noqa: PLC0415  # likewise

    session = find_session(session, RUN_DIR)
    target = output or Path(f"{session.resolve().name}.llmbench.tar")
    if session.resolve() in target.resolve().parents:
        raise ConfigError(f"{target} is inside of the session's folder: give another --output")
    signer = read_private_key(key) if key is not None else None
    recorded = make_bundle(session, target, signer, no_secret or ())
    result, name = recorded.result, str(signer.public_key.keyid) if signer is not None else None
    if certificate is not None:
        write_text(certificate, make_certificate(recorded, name))
    facts = {
        "bundle": str(target), "bytes": target.stat().st_size, "result": result, "key_id": name,
        "certificate": None if certificate is None else str(certificate),
    }  # fmt: skip
    signed = [] if name is None else [f"signed by key {name}"]
    print_facts(facts, [f"{target}: session {recorded.id}, {result}", *signed], as_json=as_json)
    if name is None and not as_json:
        typer.echo("it has no signature, so llmbench verify will refuse it: sign it with --key FILE", err=True)


def verify(
    bundle_file: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The bundle.")],
    public_key: Annotated[
        list[Path] | None, typer.Option("--public-key", help="Public key that you trust; may be given several times.")
    ] = None,
    max_gib: Annotated[int, typer.Option("--max-gib", min=1, help="Largest unpacked size, GiB.")] = 64,
    *,
    as_recorded: AsRecorded = False,
    as_json: AsJson = False,
) -> None:
    """Verify a bundle: its bytes, its signature, and every number and verdict, computed again from its logs.

    Nothing is unpacked unless a key that you trust signed it. Its runs must be those of the recipes of this folder.
    """
    from pytest_llmbench.evidence import verify as verification  # noqa: PLC0415  # likewise
    from pytest_llmbench.evidence.archive import BundleError  # noqa: PLC0415  # likewise
    from pytest_llmbench.evidence.attestation import read_public_key  # noqa: PLC0415  # likewise

    keys = [read_public_key(path) for path in public_key or ()]
    try:
        outcome = verification.verify(bundle_file, keys, max_gib << 30, law_of_today(as_recorded=as_recorded))
    except BundleError as error:
        print_facts({"verified": False, "objections": [str(error)]}, [f"NOT VERIFIED: {error}"], as_json=as_json)
        raise typer.Exit(1) from error
    print_facts(outcome.document, outcome.lines(), as_json=as_json)
    if not outcome.verified:
        raise typer.Exit(1)
