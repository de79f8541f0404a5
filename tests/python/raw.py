"""HTTP on bare sockets, for what no client library does: leaving at a chosen moment, not reading, closing one direction."""

import json
import socket
import struct
import threading
from urllib.parse import urlsplit

from server import PATIENCE_S

COMPLETIONS = "/v1/completions"


class Raw:
    """One connection. What has been read and not asked for yet lies in `buffer`."""

    def __init__(self, server, narrow=False):
        self.socket = socket.socket()
        self.socket.settimeout(PATIENCE_S)
        if narrow:
            # Little fits between the two ends. The kernel gives the sender room by the size of the segments, which on
            # the loopback interface are huge. Both are agreed on when connecting.
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
        address = urlsplit(server.url)
        self.socket.connect((address.hostname, address.port))
        self.buffer = b""

    def post(self, body, path=COMPLETIONS, length=None):
        """Sends a POST; `length` overrides what the head says of the body."""
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body) if length is None else length}\r\n\r\n"
        )
        self.socket.sendall(head.encode() + body)
        return self

    def read_until(self, mark):
        """Everything up to and with `mark`."""
        while mark not in self.buffer:
            got = self.socket.recv(65536)
            assert got, f"the server closed the connection before {mark!r}: {self.buffer!r}"
            self.buffer += got
        end = self.buffer.index(mark) + len(mark)
        found, self.buffer = self.buffer[:end], self.buffer[end:]
        return found

    def read_head(self):
        """The status of the answer."""
        return int(self.read_until(b"\r\n\r\n").split(b" ", 2)[1])

    def read_rest(self):
        """Everything to the end of the connection; a reset ends it too."""
        try:
            while got := self.socket.recv(65536):
                self.buffer += got
        except OSError:
            pass
        return self.buffer

    def leave(self, abruptly=False):
        """Closes the connection: in good order, or by a reset, as when the peer's machine goes away."""
        if abruptly:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


class Recorder:
    """Stands between a client and a server, for one connection, and keeps what the server answered."""

    def __init__(self, server):
        self.server = Raw(server).socket
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = "http://127.0.0.1:%d" % self.listener.getsockname()[1]
        self.answered = b""
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        self.client = self.listener.accept()[0]
        threading.Thread(target=self._pass_on, daemon=True).start()
        try:
            while got := self.server.recv(65536):
                self.answered += got
                self.client.sendall(got)
        except OSError:
            pass

    def _pass_on(self):
        try:
            while got := self.client.recv(65536):
                self.server.sendall(got)
        except OSError:
            pass

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        for end in (self.listener, self.client, self.server):
            end.close()
