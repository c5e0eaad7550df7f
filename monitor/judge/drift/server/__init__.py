"""The server's own figures: queue, engine steps, prefix cache, process starts."""
