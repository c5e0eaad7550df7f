"""Simulated GPUs: their physics, and what their driver reports."""
