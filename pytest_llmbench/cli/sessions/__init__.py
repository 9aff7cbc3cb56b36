"""Sessions: `llmbench plan`, `resume` and `prune`."""
