"""Replay: the judges over stored or simulated history, without a daemon."""
