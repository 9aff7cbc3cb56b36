"""The first tables: sessions, runs and checks, metrics, verdicts, and devices; as they were then."""

from alembic import op
from sqlalchemy import (
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

revision = "0001"
down_revision = None

_METADATA = MetaData()

_SESSIONS = Table(
    "llmbench_sessions", _METADATA,
    Column("id", String(200), primary_key=True),
    Column("began", Double, nullable=False, index=True),
    Column("system", Text, nullable=False),
    Column("cluster", String(20), nullable=False),
    Column("version", Text),
    Column("git_commit", String(64), index=True),
    Column("ended", Boolean, nullable=False),
    Column("imported", Double, nullable=False),
)  # fmt: skip

_TAGS = Table(
    "llmbench_tags", _METADATA,
    Column("tag", String(200), primary_key=True),
    Column("session", ForeignKey(_SESSIONS.c.id, ondelete="CASCADE"), primary_key=True),
)  # fmt: skip

_SERIES = Table(
    "llmbench_series", _METADATA,
    Column("id", Integer, primary_key=True),
    Column("recipe", String(200), nullable=False),
    Column("engine", Text, nullable=False),
    Column("scale", String(20), nullable=False),
    Column("system", Text, nullable=False),
    Column("nodes", Integer, nullable=False),
    Column("gpus", Integer, nullable=False),
    Column("ranks", Integer, nullable=False),
    Column("hardware", Text, nullable=False),
    Column("setup", String(64), nullable=False),
    UniqueConstraint(
        "recipe", "engine", "scale", "system", "nodes", "gpus", "ranks", "hardware", "setup", name="llmbench_one_series"
    ),
)  # fmt: skip

_RUNS = Table(
    "llmbench_runs", _METADATA,
    Column("id", Integer, primary_key=True),
    Column("session", ForeignKey(_SESSIONS.c.id, ondelete="CASCADE"), nullable=False),
    Column("about", String(10), nullable=False),
    Column("name", String(200), nullable=False),
    Column("series", ForeignKey(_SERIES.c.id)),
    Column("time", Double, nullable=False),
    Column("content", String(64), nullable=False),
    Column("measurement", String(64), index=True),
    Column("counts", Boolean, nullable=False),
    Column("simulated", Text),
    Column("replayed", Boolean, nullable=False),
    Column("problem", Text),
    Column("git_commit", String(64), index=True),
    Column("path", Text, nullable=False),
    UniqueConstraint("session", "about", "name", name="llmbench_one_run"),
    Index("llmbench_runs_of_series", "series", "time"),
)  # fmt: skip

_METRICS = Table(
    "llmbench_metrics", _METADATA,
    Column("run", ForeignKey(_RUNS.c.id, ondelete="CASCADE"), primary_key=True),
    Column("name", String(100), primary_key=True),
    Column("series", ForeignKey(_SERIES.c.id), nullable=False),
    Column("time", Double, nullable=False),
    Column("value", Double, nullable=False),
    Column("unit", String(30), nullable=False),
    Column("low", Double),
    Column("high", Double),
    Column("better", String(10)),
    Index("llmbench_metrics_of_series", "series", "name", "time"),
)  # fmt: skip

_VERDICTS = Table(
    "llmbench_verdicts", _METADATA,
    Column("run", ForeignKey(_RUNS.c.id, ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("test", Text, nullable=False),
    Column("verdict", String(20), nullable=False),
    Column("statistic", Text),
    Column("measured", Text),
    Column("threshold", Text),
    Column("reference", Text),
    Column("reason", Text),
)  # fmt: skip

_DEVICES = Table(
    "llmbench_devices", _METADATA,
    Column("id", Integer, primary_key=True),
    Column("kind", String(10), nullable=False),
    Column("name", String(300), nullable=False),
    Column("node", String(200), nullable=False, index=True),
    UniqueConstraint("kind", "name", name="llmbench_one_device"),
)  # fmt: skip

_SIGHTINGS = Table(
    "llmbench_sightings", _METADATA,
    Column("run", ForeignKey(_RUNS.c.id, ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("device", ForeignKey(_DEVICES.c.id), nullable=False),
    Column("time", Double, nullable=False),
    Column("kind", String(10), nullable=False),
    Column("what", Text, nullable=False),
    Column("said", Text, nullable=False),
    Column("value", Double),
    Column("unit", String(30)),
    Column("blames", Boolean, nullable=False),
    Index("llmbench_sightings_of_device", "device", "time"),
    Index("llmbench_sightings_that_blame", "blames", "time"),
)  # fmt: skip


def upgrade() -> None:
    """Make the tables."""
    _METADATA.create_all(op.get_bind(), checkfirst=False)
