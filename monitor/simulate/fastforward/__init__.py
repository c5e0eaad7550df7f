"""Virtual time only: many equal steps of the engine at once."""
