"""A webhook receiver that appends each body to a file, one per line. Standard library only, for use
in a container.

    python3 receiver.py PORT FILE
"""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

PORT, FILE = int(sys.argv[1]), Path(sys.argv[2])


class Receiver(BaseHTTPRequestHandler):
    """Answers 204 to every POST."""

    def do_POST(self) -> None:
        """Stores the body."""
        body = self.rfile.read(int(self.headers["content-length"]))
        with FILE.open("ab") as file:
            file.write(body.replace(b"\n", b" ") + b"\n")
        self.send_response(204)
        self.end_headers()


HTTPServer(("127.0.0.1", PORT), Receiver).serve_forever()
