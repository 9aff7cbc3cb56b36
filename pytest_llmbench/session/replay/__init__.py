"""Replay: logs made elsewhere, judged without a cluster."""
