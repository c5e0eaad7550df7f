"""Background load: the requests of other clients."""
