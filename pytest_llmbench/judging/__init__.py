"""Floor 1: pure numbers. What a step series says, whether it can be believed, whether it is enough."""
