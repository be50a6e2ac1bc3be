"""A service that knows nothing of limits, to try a gateway in front of it.

    python3 examples/service.py 127.0.0.1:3000
"""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Service(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = f"{self.command} {self.path}: hello from the service\n"
        if self.path == "/headers":
            body += str(self.headers).strip() + "\n"
        body = body.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_DELETE = answer


if __name__ == "__main__":
    host, port = sys.argv[1].rsplit(":", 1)
    ThreadingHTTPServer((host, int(port)), Service).serve_forever()
