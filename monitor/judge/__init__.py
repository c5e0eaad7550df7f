"""What the figures mean: pure functions from values and a time to findings."""
