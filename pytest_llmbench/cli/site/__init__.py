"""A site: the folder of its tests, its files, and its login node."""
