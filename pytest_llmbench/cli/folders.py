"""Where the commands look for sessions."""

from pathlib import Path

RUN_DIR = Path("reports")
