"""The folder of a site and the login node: `llmbench init` and `doctor`."""
