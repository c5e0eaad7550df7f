"""Fast-forward for virtual time: many equal steps of the engine at once."""
