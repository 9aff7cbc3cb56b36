"""Where shipped files are."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Literal

import pytest

from pytest_llmbench.core import paths
from pytest_llmbench.core.errors import ConfigError


@pytest.mark.parametrize("kind", ["recipes", "systems"])
def test_shipped_files_are_found(kind: Literal["recipes", "systems"]) -> None:
    assert list(paths.shipped(kind).glob("*.yaml"))


def test_a_package_of_yaml_files_is_a_folder_and_a_module_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acme_yaml" / "recipes").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert paths.folder_of(import_module("acme_yaml.recipes")) == tmp_path / "acme_yaml" / "recipes"
    for other in (sys.modules["os"], "acme_yaml.recipes"):
        with pytest.raises(ConfigError, match="it is not a package; give the dotted name of a folder"):
            paths.folder_of(other)
