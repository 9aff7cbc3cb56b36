"""Messages between the login node and the ranks: tasks, events, labels."""
