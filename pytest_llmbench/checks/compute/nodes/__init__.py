"""The part of these checks that runs on the nodes."""
