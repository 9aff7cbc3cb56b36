"""Site defaults go here; there is no logic in this file."""

# pytest takes this from the topmost conftest only; the project's own tests need it.
pytest_plugins = ["pytester"]
