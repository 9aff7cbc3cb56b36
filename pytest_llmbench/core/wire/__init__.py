"""What the login node and the ranks tell each other: tasks, events, labels."""
