"""Projection: how fast a training would be on many nodes, on paper, from measured pieces; docs/projection.md."""
