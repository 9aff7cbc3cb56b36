"""`python -m pytest_llmbench.cli`: `llmbench` by the name of its module."""

from pytest_llmbench.cli.app import main

main()
