"""Simulated GPUs: physics, what the driver says, and how an exporter shows it."""
