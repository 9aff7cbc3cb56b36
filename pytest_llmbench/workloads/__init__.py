"""Library for code that runs on nodes: it imports neither pytest nor submitit."""
