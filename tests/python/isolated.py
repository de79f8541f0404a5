"""Completes a request on the bundled model and prints the answer. Meant to run in a network namespace of its own, with
no interface but loopback: `unshare --net python3 isolated.py`."""

import fcntl
import socket
import struct

from conftest import connect
from server import BUNDLED, Server

SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
# Reserved for documentation: nobody answers there, but where there is a network the kernel lets us ask.
ELSEWHERE = ("192.0.2.1", 9)
REQUEST = {"prompt": "And it came to pass", "max_tokens": 24, "temperature": 0}


def raise_loopback():
    """A new namespace has a loopback interface that is down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        name, flags = struct.unpack("16sh", fcntl.ioctl(handle, SIOCGIFFLAGS, struct.pack("16sh", b"lo", 0)))
        fcntl.ioctl(handle, SIOCSIFFLAGS, struct.pack("16sh", name, flags | IFF_UP))


def is_cut_off():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        try:
            handle.connect(ELSEWHERE)
        except OSError:
            return True
        return False


def main():
    assert is_cut_off(), "this process has a network"
    raise_loopback()
    assert is_cut_off()
    server = Server("--threads", "1", package=BUNDLED)
    try:
        client = connect(server)
        answer = client.completions.create(model=client.models.list().data[0].id, **REQUEST)
        print(answer.choices[0].text, end="")
    finally:
        server.kill()


if __name__ == "__main__":
    main()
