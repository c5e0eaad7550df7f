"""Readings of GPUs through NVML or a DCGM exporter."""
