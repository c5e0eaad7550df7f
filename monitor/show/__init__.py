"""Output for people and programs: sentences, tables, JSON, CSV, Prometheus metrics, health."""
