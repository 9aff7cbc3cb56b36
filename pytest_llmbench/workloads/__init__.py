"""Library for code that runs on nodes, independent of pytest and submitit."""
