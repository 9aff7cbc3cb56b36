"""How sure a measured speed is: from the steps of a run to an interval that contains its steady rate."""
