"""The words that everything else speaks. Folders: `recipe`, `wire`, `record`."""
