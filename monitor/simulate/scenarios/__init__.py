"""Scenarios: YAML files, their parser, and how they are played."""
