"""What an option is where a recipe does not say: apart from the options, so that a rank imports no pydantic."""

from collections.abc import Mapping
from typing import Any

# Standard deviation of the logits that a training begins with.
INITIAL_STD = 0.01
DEFAULTS: Mapping[str, Any] = {"step_s": 0.005, "late_s": 0.0, "logged_s": None, "clock_s": 0.0, "grows_mib": 0.0}
