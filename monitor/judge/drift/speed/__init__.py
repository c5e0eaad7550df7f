"""Speed of a target: decode rate, time to first token and engine steps against their baselines,
service levels, starts of the process, and before and after a change of configuration.
"""
