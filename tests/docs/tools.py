"""The programs in tools/ as modules, for the tests of what they do."""

import importlib.util
import sys
from types import ModuleType

from tests.docs.documents import CHECKOUT

sys.path.append(str(CHECKOUT / "tools"))  # they may import each other


def load(name: str) -> ModuleType:
    """Import `tools/NAME.py`, which is a program of its own."""
    spec = importlib.util.spec_from_file_location(name, CHECKOUT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
