"""The uncertainty of a measured speed: an interval around the steady rate of a run."""
