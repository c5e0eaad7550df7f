"""Tests against a booted systemd (make test-systemd)."""
