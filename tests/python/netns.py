"""Hosts of a small network inside this machine: a network namespace each, and a router that delays, loses and swallows packets.

The router is a process with a TUN device in every namespace, so that both ends speak TCP through kernels that know nothing of
each other: lost packets are sent again, and nobody resets a connection whose peer went away. The kernel's own `netem` would
need a module that many kernels lack; this needs /dev/net/tun and root. The namespaces end with the processes in them.
"""

import collections
import contextlib
import ctypes
import fcntl
import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
import threading
import time

CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
SIOCSIFADDR, SIOCSIFNETMASK = 0x8916, 0x891C
DEVICE = b"wire0"

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name, *args):
    if getattr(_libc, name)(*args) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


class Host:
    """One end. In `with host:` this thread, and the threads and processes that it starts, are on that host."""

    def __init__(self, number, namespace):
        self.number = number
        self.address = address(number)
        self.namespace = namespace
        self._before = threading.local()

    def __enter__(self):
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        vars(self._before).setdefault("stack", []).append(before)
        _call("setns", self.namespace, CLONE_NEWNET)
        return self

    def __exit__(self, *_):
        before = self._before.stack.pop()
        _call("setns", before, CLONE_NEWNET)
        os.close(before)


class Network:
    """`count` hosts; a packet takes `delay_ms` from one to another, and is lost with the probability `loss`."""

    def __init__(self, count=2, delay_ms=0.0, loss=0.0, seed=1):
        self.router = subprocess.Popen(
            [sys.executable, __file__, json.dumps([count, delay_ms / 1000, loss, seed])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        first = self.router.stdout.readline()
        if not first:
            raise OSError(self.router.communicate()[1].strip().splitlines()[-1])
        self.hosts = [Host(number, os.open(f"/proc/{self.router.pid}/fd/{fd}", os.O_RDONLY))
                      for number, fd in enumerate(json.loads(first))]

    def _order(self, *order):
        self.router.stdin.write(json.dumps(order) + "\n")
        self.router.stdin.flush()
        return json.loads(self.router.stdout.readline())

    def swallow(self, source, target):
        """From now on nothing of what host `source` sends to host `target` arrives."""
        self._order("swallow", source, target)

    def heal(self):
        """Nothing is swallowed any more."""
        self._order("heal")

    def stats(self):
        """Packets `passed`, `lost` and `swallowed`, and the `cpu` seconds of the router."""
        return self._order("stats")

    def close(self):
        for host in self.hosts:
            os.close(host.namespace)
        self.router.stdin.close()
        self.router.wait()
        self.router.stdout.close()
        self.router.stderr.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def impossible():
    """Why there can be no such network here; nothing where there can."""
    try:
        Network().close()
    except OSError as error:
        return f"no network namespaces with TUN devices here (they need root and /dev/net/tun): {error}"
    return None


def address(number):
    return f"10.77.0.{number + 1}"


def _raise(handle, name):
    name, flags = struct.unpack("16sh", fcntl.ioctl(handle, SIOCGIFFLAGS, struct.pack("16sh", name, 0)))
    fcntl.ioctl(handle, SIOCSIFFLAGS, struct.pack("16sh", name, flags | IFF_UP))


def _new_host(number):
    """A new namespace, which this thread is in afterwards: (it, the router's end of its only wire)."""
    _call("unshare", CLONE_NEWNET)
    wire = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(wire, TUNSETIFF, struct.pack("16sH22x", DEVICE, IFF_TUN | IFF_NO_PI))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        for order, value in ((SIOCSIFADDR, address(number)), (SIOCSIFNETMASK, "255.255.255.0")):
            inet = struct.pack("16sHH4s8x", DEVICE, socket.AF_INET, 0, socket.inet_aton(value))
            fcntl.ioctl(handle, order, inet)
        _raise(handle, DEVICE)
        _raise(handle, b"lo")
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY), wire


class Router:
    """What the process in the middle does, until whoever started it has gone."""

    def __init__(self, count, delay_s, loss, seed):
        self.delay_s, self.loss = delay_s, loss
        self.dice = random.Random(seed)
        self.namespaces, self.wires = zip(*(_new_host(number) for number in range(count)))
        self.number_of = {socket.inet_aton(address(number)): number for number in range(count)}
        self.black = set()
        self.counts = collections.Counter(passed=0, lost=0, swallowed=0)
        # All packets take the same time, so they arrive in order.
        self.on_the_way = collections.deque()

    def run(self):
        print(json.dumps(self.namespaces), flush=True)
        waited_on = [0, *self.wires]
        while True:
            wait = None
            if self.on_the_way:
                wait = max(0.0, self.on_the_way[0][0] - time.monotonic())
            for ready in select.select(waited_on, [], [], wait)[0]:
                if ready != 0:
                    self._take(ready)
                elif not self._obey(sys.stdin.readline()):
                    return
            self._deliver()

    def _obey(self, line):
        if not line:
            return False
        order, *ends = json.loads(line)
        if order == "swallow":
            self.black.add(tuple(ends))
        elif order == "heal":
            self.black.clear()
        print(json.dumps({**self.counts, "cpu": time.process_time()}), flush=True)
        return True

    def _take(self, wire):
        with contextlib.suppress(BlockingIOError):
            while True:
                packet = os.read(wire, 1 << 16)
                # Anything but IPv4 comes from the kernel by itself.
                target = self.number_of.get(packet[16:20]) if packet[0] >> 4 == 4 else None
                if target is None:
                    continue
                if (self.wires.index(wire), target) in self.black:
                    self.counts["swallowed"] += 1
                elif self.dice.random() < self.loss:
                    self.counts["lost"] += 1
                else:
                    self.on_the_way.append((time.monotonic() + self.delay_s, self.wires[target], packet))

    def _deliver(self):
        while self.on_the_way and self.on_the_way[0][0] <= time.monotonic():
            _, wire, packet = self.on_the_way.popleft()
            try:
                os.write(wire, packet)
                self.counts["passed"] += 1
            except BlockingIOError:
                self.counts["lost"] += 1


if __name__ == "__main__":
    Router(*json.loads(sys.argv[1])).run()
