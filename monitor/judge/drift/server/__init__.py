"""The server's own figures between canaries, the workload of its users, and its prefix cache."""
