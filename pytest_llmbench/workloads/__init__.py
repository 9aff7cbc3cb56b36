"""Floor 2: what runs on the nodes. Importable functions that speak no pytest and know no scheduler.

A folder for each engine that trains in our own process, named as in `engines`, and one for the `checks`. Beside them
what they share, and what a node runs: `command` starts a command, `rank` a rank of a training, `probe` a check's.
"""
