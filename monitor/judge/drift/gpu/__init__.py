"""One GPU: its readings, its baseline, its conditions and the early warnings they give.

A reading becomes part of a minute, minutes become intervals, and two intervals a comparison.
"""
