"""What a server says of itself: API, metrics page, identity, files and process."""
