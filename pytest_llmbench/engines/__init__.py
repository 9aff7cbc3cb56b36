"""Floor 2: one module per engine behind one Protocol. Adding an engine is adding its file here."""
