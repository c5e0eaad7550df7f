"""One target's judges as one machine: it is fed with points and asked for its findings at a time.

The daemon feeds it with new rows, a replay with stored ones, and both make their incidents agree
with its assessments (monitor/alert/lifecycle.py).
"""
