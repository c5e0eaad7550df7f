"""From findings to incidents, and from incidents to notifications."""
