"""Scenarios: YAML files, how they are read, and how they are played."""
