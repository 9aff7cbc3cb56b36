"""Nodes and jobs: allocations, leases, containers, settings."""
