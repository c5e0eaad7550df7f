"""Wiring and life of the daemon: which canary runs when, what is judged when, and how it starts, is
supervised and stops.
"""
