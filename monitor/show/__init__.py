"""What people and other programs see: tables, JSON, Prometheus, health."""
