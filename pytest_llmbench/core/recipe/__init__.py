"""What a recipe declares: its training, layout, environment and references."""
