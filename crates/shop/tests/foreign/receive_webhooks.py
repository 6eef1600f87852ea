"""Receives webhooks on a free port of this machine, until it is killed: receive_webhooks.py SECRET

Its first line is its URL. A request whose signature does not hold, or that is no CloudEvent, is refused for good.
"""

import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

from cloudevents.core.bindings import http
from standardwebhooks.webhooks import Webhook

import cloud_event

secret = Webhook(sys.argv[1])


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = dict(self.headers.items())
        try:
            secret.verify(body, headers)
            event = http.from_binary_event(http.HTTPMessage(headers=headers, body=body))
            cloud_event.tell(event, cloud_event.names(headers, http.CE_PREFIX), self.headers["webhook-id"])
            self.send_response(204)
        except Exception as error:
            print(f"refused: {error!r}", file=sys.stderr)
            self.send_response(400)
        self.end_headers()

    def log_message(self, *_):
        """Says nothing: the standard output is for events."""


server = HTTPServer(("127.0.0.1", 0), Receiver)
print(f"http://127.0.0.1:{server.server_port}/hooks", flush=True)
server.serve_forever()
