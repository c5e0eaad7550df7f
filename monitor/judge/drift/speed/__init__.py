"""What the canaries feel: decode rate, TTFT and service levels, conditioned on load."""
