"""MLPerf Training: its public logs are read and judged."""
