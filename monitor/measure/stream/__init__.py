"""One streamed answer: connection, request, arrivals, events, tokens, and how long to wait."""
