"""Building blocks that several engines train with."""
