"""The declarations of a recipe: its training, layout, environment and references."""
