"""What the history knows of nodes and their parts."""
