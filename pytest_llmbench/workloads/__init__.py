"""Floor 2: what runs on the nodes. Importable functions that speak no pytest and know no scheduler."""
