"""Site defaults go here; there is no logic in this file."""

pytest_plugins = ["pytester"]
