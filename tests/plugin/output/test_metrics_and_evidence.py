"""A session hands its numbers to monitoring at its end, and leaves a folder that can be bundled and verified."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from prometheus_client.openmetrics import parser

from pytest_llmbench.bundle.make import make_bundle
from pytest_llmbench.bundle.verify import verify
from tests.conftest import UserFolder
from tests.support.collector import collector

LOCAL = ("--cluster", "local")


@pytest.mark.parametrize("distribution", ["-n0", "-n2"])
def test_a_session_is_exported_bundled_and_verified(user: UserFolder, distribution: str, tmp_path: Path) -> None:
    """An endpoint that refuses is named, and changes neither a verdict nor the exit code."""
    user.recipe()
    user.test()
    with collector(400) as (url, _):
        result = user.run(distribution, *LOCAL, "--metrics-file", "metrics/llmbench.prom", "--otlp", url)
    assert result.returncode == 0, result.text
    assert f"WARNING: {url}/v1/metrics has not taken the numbers" in result.text
    read: Callable[[str], Any] = parser.text_string_to_metric_families
    families = read((user.path / "metrics" / "llmbench.prom").read_text())
    found = {(sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples}
    assert found["llmbench_tests", "PASS"] == 1
    assert found["llmbench_run_judged", "tiny", "tiny", "local"] == 1
    key = Ed25519PrivateKey.generate()
    make_bundle(result.session, tmp_path / "b.tar", key)
    # No reference of its recipe is on speed.
    told = verify(tmp_path / "b.tar", [key.public_key()])
    assert (told.verified, told.result, told.verdicts, told.taken) == (True, "WARNED", 1, [])


def test_an_address_that_is_none_is_refused_before_anything_runs(user: UserFolder) -> None:
    """With the address."""
    user.recipe()
    user.test()
    result = user.run("-n0", "--otlp", "collector:4318")
    assert (result.returncode, result.found) == (pytest.ExitCode.USAGE_ERROR, None)
    assert "'collector:4318' is not an address of HTTP" in result.text
