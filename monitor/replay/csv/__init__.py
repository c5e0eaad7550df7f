"""Samples and readings from CSV files, with their units checked over the whole file."""
