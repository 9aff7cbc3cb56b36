"""`python -m pytest_llmbench.cli`, where the command `llmbench` is not on PATH."""

from pytest_llmbench.cli.app import main

main()
