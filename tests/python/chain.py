"""Real `skippy-stage stage` processes, and a first stage in front of them."""

import re
import socket
import threading

from server import BIN, BUNDLED, Server

_WAITING = re.compile(r"waiting for the stage in front.*address=(\S+)")
_PROBES = re.compile(r"probes and metrics on (http://\S+)")


def free_port():
    """A port that was free a moment ago. Whoever calls must listen there again after a restart."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class Worker(Server):
    """One stage behind others, loaded and waiting for a call when the constructor returns."""

    ADDRESS = _PROBES
    CALLABLE = _WAITING

    def __init__(self, layers, *args, next=None, port=None, package=BUNDLED, prefix=(), host="127.0.0.1"):
        port = port or free_port()
        self.address = f"http://{host}:{port}"
        command = [*prefix, BIN, "stage", package, "--layers", layers, "--bind", f"{host}:{port}",
                   "--http", f"{host}:0", *args]
        if next:
            command += ["--next", next.address if isinstance(next, Worker) else next]
        self.again = lambda: Worker(layers, *args, next=next, port=port, package=package, prefix=prefix, host=host)
        self.start(command)


class Chain:
    """A first stage and those behind it, cut before the layers `cuts`."""

    def __init__(self, cuts, layer_count, *args, package=BUNDLED, link=(), head=()):
        """`args` go to every stage, `link` too, `head` to the first one only."""
        bounds = [*cuts, layer_count]
        self.workers = []
        self.head = None
        try:
            following = None
            for start, end in reversed(list(zip(bounds, bounds[1:]))):
                following = Worker(f"{start}..{end}", *args, *link, next=following, package=package)
                self.workers.insert(0, following)
            self.head = Server("--layers", f"0..{cuts[0]}", "--next", following.address, *args, *link, *head,
                               package=package)
        except BaseException:
            self.kill()
            raise

    def restart(self, index):
        """Starts a worker again that has ended."""
        self.workers[index] = self.workers[index].again()
        return self.workers[index]

    def must_be_well(self):
        ends = [self.head, *self.workers]
        well = [end.process.poll() is None and "panicked" not in end.log_text() for end in ends]
        self.kill()
        assert all(well), "\n".join(end.log_text()[-3000:] for end, fine in zip(ends, well) if not fine)

    def kill(self):
        for end in [self.head, *self.workers]:
            if end:
                end.kill()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.must_be_well()
        else:
            for end in [self.head, *self.workers]:
                if end:
                    print(end.log_text()[-2000:])
            self.kill()


class Line:
    """A TCP line between two stages that can be cut, or swallow everything in one direction or both."""

    def __init__(self, port):
        self.target = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "http://127.0.0.1:%d" % self.listener.getsockname()[1]
        self.swallow = set()
        self.ends = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        try:
            while True:
                near = self.listener.accept()[0]
                try:
                    far = socket.create_connection(("127.0.0.1", self.target))
                except OSError:
                    near.close()
                    continue
                self.ends += [near, far]
                for source, sink, name in ((near, far, "down"), (far, near, "up")):
                    source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    threading.Thread(target=self._pass_on, args=(source, sink, name), daemon=True).start()
        except OSError:
            pass

    def _pass_on(self, source, sink, name):
        try:
            while got := source.recv(1 << 16):
                if name not in self.swallow:
                    sink.sendall(got)
        except OSError:
            pass
        finally:
            if name not in self.swallow:
                sink.close()

    def close(self):
        self.listener.close()
        for end in self.ends:
            end.close()
