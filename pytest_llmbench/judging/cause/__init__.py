"""The cause of a missed speed: evidence in, one sentence out."""
