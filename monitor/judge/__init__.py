"""Judges: pure functions from values and a time to findings."""
