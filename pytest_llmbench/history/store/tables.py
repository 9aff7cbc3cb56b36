"""The tables of the history. A change of them needs another `SCHEMA_VERSION` in `database.py`.

Their names begin with `llmbench_`, so that a database may hold tables of others as well.
"""

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

METADATA = MetaData()

# One row.
SCHEMA = Table("llmbench_schema", METADATA, Column("version", Integer, nullable=False))

# `ended` sessions cannot be resumed: none of their records changes any more.
SESSIONS = Table(
    "llmbench_sessions", METADATA,
    Column("id", String(200), primary_key=True),
    Column("began", Double, nullable=False, index=True),
    Column("system", Text, nullable=False),
    Column("cluster", String(20), nullable=False),
    Column("version", Text),
    Column("git_commit", String(64), index=True),
    Column("ended", Boolean, nullable=False),
    Column("imported", Double, nullable=False),
)  # fmt: skip

TAGS = Table(
    "llmbench_tags", METADATA,
    Column("tag", String(200), primary_key=True),
    Column("session", ForeignKey(SESSIONS.c.id, ondelete="CASCADE"), primary_key=True),
)  # fmt: skip

# What runs have in common whose numbers may be compared. `setup` is a digest of what the recipe trains.
SERIES = Table(
    "llmbench_series", METADATA,
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

# Runs and checks. `content` is a digest of the record; `measurement` one of its steps: two runs that share it are one
# measurement, read twice. `counts`: it is a measurement of this history, neither simulated nor read twice.
RUNS = Table(
    "llmbench_runs", METADATA,
    Column("id", Integer, primary_key=True),
    Column("session", ForeignKey(SESSIONS.c.id, ondelete="CASCADE"), nullable=False),
    Column("about", String(10), nullable=False),
    Column("name", String(200), nullable=False),
    Column("series", ForeignKey(SERIES.c.id)),
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

# `time` and `series` are those of the run: a series is read in one sweep of an index.
METRICS = Table(
    "llmbench_metrics", METADATA,
    Column("run", ForeignKey(RUNS.c.id, ondelete="CASCADE"), primary_key=True),
    Column("name", String(100), primary_key=True),
    Column("series", ForeignKey(SERIES.c.id), nullable=False),
    Column("time", Double, nullable=False),
    Column("value", Double, nullable=False),
    Column("unit", String(30), nullable=False),
    Column("low", Double),
    Column("high", Double),
    Column("better", String(10)),
    Index("llmbench_metrics_of_series", "series", "name", "time", "run"),
)  # fmt: skip

VERDICTS = Table(
    "llmbench_verdicts", METADATA,
    Column("run", ForeignKey(RUNS.c.id, ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("test", Text, nullable=False),
    Column("verdict", String(20), nullable=False),
    Column("statistic", Text),
    Column("measured", Text),
    Column("threshold", Text),
    Column("reference", Text),
    Column("reason", Text),
)  # fmt: skip

# A node, by its name; a GPU, by its UUID where a record has it; any other part, such as a port, by its node and name.
DEVICES = Table(
    "llmbench_devices", METADATA,
    Column("id", Integer, primary_key=True),
    Column("kind", String(10), nullable=False),
    Column("name", String(300), nullable=False),
    Column("node", String(200), nullable=False, index=True),
    UniqueConstraint("kind", "name", name="llmbench_one_device"),
)  # fmt: skip

# What a run or a check says of a device: that it took part, what was measured on it alone, what was found, what was
# decided. `blames`: a fault of the device itself, which counts towards avoiding its node.
SIGHTINGS = Table(
    "llmbench_sightings", METADATA,
    Column("run", ForeignKey(RUNS.c.id, ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("device", ForeignKey(DEVICES.c.id), nullable=False),
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
