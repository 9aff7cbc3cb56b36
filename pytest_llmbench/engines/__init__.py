"""Floor 2: one module per engine behind one Protocol. Adding one takes its file here, and a line of pyproject.toml."""
