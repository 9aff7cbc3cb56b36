"""Floor 0: the words everything else speaks (quantities, recipes, references, records, errors)."""
