"""Engine metaseq: metaseq's launcher or trainer as a command."""
