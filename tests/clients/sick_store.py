#!/usr/bin/env python3
"""Stands between a client and an HTTP server, and falls ill as a file says.

sick_store.py PORT HOST:PORT FILE: listens on 127.0.0.1:PORT, for the server at HOST:PORT. FILE is read at each request; it says one of

    well             what the server says is passed on
    status N         the answer is N, and the server hears of nothing
    slow SECONDS     the request is passed on so much later
    silent           there is no answer, and the server hears of nothing
    reset            the connection is reset in the midst of the request
    lost             the server carries out the request, and its answer is lost: the connection is reset

With methods behind it that is for requests of these, as `lost PUT`; all others are well.
"""
import http.client
import http.server
import io
import socket
import struct
import sys
import time

PORT, SERVER, FILE = int(sys.argv[1]), sys.argv[2], sys.argv[3]


def illness(method):
    with open(FILE, encoding="ascii") as file:
        what, *rest = file.read().split() or ["well"]
    number = rest.pop(0) if what in ("status", "slow") else None
    return (what, number) if not rest or method in rest else ("well", None)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body of an answer are two writes.
    disable_nagle_algorithm = True
    server_connection = None

    def log_message(self, *_):
        pass

    def reset(self):
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.wfile = io.BytesIO()
        self.rfile.close()
        self.connection.close()

    def answer(self, status, headers, body):
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("transfer-encoding", "connection"):
                self.send_header(name, value)
        if status != 204 and not any(name.lower() == "content-length" for name, _ in headers):
            self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def pass_on(self, body):
        """The server's answer. Who has closed its side meanwhile is connected to anew."""
        for fresh in False, True:
            if self.server_connection is None or fresh:
                self.server_connection = http.client.HTTPConnection(SERVER, timeout=60)
            try:
                self.server_connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    self.server_connection.putheader(name, value)
                self.server_connection.endheaders(body)
                answer = self.server_connection.getresponse()
                return answer.status, answer.getheaders(), answer.read()
            except (http.client.RemoteDisconnected, ConnectionError):
                if fresh:
                    raise

    def handle_one(self):
        what, number = illness(self.command)
        if what == "reset":
            self.rfile.read(min(int(self.headers.get("content-length", 0)), 100))
            return self.reset()
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if what == "silent":
            while illness(self.command)[0] == "silent":
                time.sleep(0.1)
            return self.reset()
        if what == "status":
            told = f"<Error><Code>Sick</Code><Message>it says {number}</Message></Error>".encode()
            return self.answer(int(number), [("content-type", "application/xml")], told)
        if what == "slow":
            time.sleep(float(number))
        answer = self.pass_on(body)
        if what == "lost":
            return self.reset()
        return self.answer(*answer)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_one


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_):
        """Who goes away in the midst of something is the point."""


Server(("127.0.0.1", PORT), Handler).serve_forever()
