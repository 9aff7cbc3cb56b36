"""Runs `llmbench` as `python -m pytest_llmbench.cli`."""

from pytest_llmbench.cli.app import main

main()
