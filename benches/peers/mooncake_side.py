"""Mooncake's store over TCP, by its own Python interface: a node that has the memory, a writer and a reader without any.

One object a column; the writer sends from, and the reader receives into, memory that was registered before. (TransferQueue's backend for
Mooncake stores one object a cell, and starts by ending every `mooncake_master` of the machine; neither is done here.)
"""

import ctypes
import os
import socket
import subprocess
import sys
import tempfile
import time

import numpy

from processes import Process
from tables import Shape, make, words

SEGMENT = 1 << 30
BUFFER = 64 << 20


class Client:
    """`segment`: the memory it gives to the store, in bytes; 0 for none."""

    def __init__(self, master: str, segment: int):
        from mooncake.store import MooncakeDistributedStore

        self._store = MooncakeDistributedStore()
        self._check("setup", self._store.setup("127.0.0.1", "P2PHANDSHAKE", segment, BUFFER, "tcp", "", master))
        self._memory = self._keys = self._places = self._sizes = None

    @staticmethod
    def _check(what: str, status: int) -> None:
        if status < 0:
            raise RuntimeError(f"mooncake: {what} failed with status {status}")

    def prepare(self, shape: Shape, write: bool) -> int:
        """Memory for the columns, registered; filled by the writer."""
        if self._memory is not None:
            self._check("unregister_buffer", self._store.unregister_buffer(self._memory.ctypes.data))
        table = make(shape)
        columns = [as_bytes(cells) for cells in table.values()]
        self._sizes = [column.nbytes for column in columns]
        self._memory = numpy.zeros(sum(self._sizes), numpy.uint8)
        self._check("register_buffer", self._store.register_buffer(self._memory.ctypes.data, self._memory.nbytes))
        self._keys, self._places, at = list(table), [], 0
        for column in columns:
            self._places.append(self._memory.ctypes.data + at)
            if write:
                ctypes.memmove(self._places[-1], column.ctypes.data, column.nbytes)
            at += column.nbytes
        return words(self._memory)

    def put(self) -> float:
        begun = time.perf_counter()
        for status in self._store.batch_put_from(self._keys, self._places, self._sizes):
            self._check("batch_put_from", status)
        return time.perf_counter() - begun

    def get(self) -> tuple[float, int]:
        begun = time.perf_counter()
        for status in self._store.batch_get_into(self._keys, self._places, self._sizes):
            self._check("batch_get_into", status)
        sum = words(self._memory)
        took = time.perf_counter() - begun
        # What the next round finds must have come with it.
        self._memory.fill(0)
        return took, sum

    def clear(self) -> float:
        begun = time.perf_counter()
        # By force: whoever has read an object holds a lease on it for ten seconds.
        for status in self._store.batch_remove(self._keys, True):
            self._check("batch_remove", status)
        return time.perf_counter() - begun

    def close(self) -> None:
        self._store.close()


def as_bytes(cells) -> numpy.ndarray:
    return numpy.frombuffer("".join(cells).encode() if isinstance(cells, list) else cells, numpy.uint8)


def end_with_parent() -> None:
    """The kernel ends this process when its parent goes, however it goes: prctl(PR_SET_PDEATHSIG, SIGTERM)."""
    ctypes.CDLL(None).prctl(1, 15)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Mooncake:
    name = "Mooncake, TCP"

    def __init__(self):
        port = free_port()
        program = os.path.join(os.path.dirname(sys.executable), "mooncake_master")
        command = [program, "--rpc_address=127.0.0.1", f"--rpc_port={port}", f"--metrics_port={free_port()}"]
        self._log = tempfile.TemporaryFile("w+")
        self._master = subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT, preexec_fn=end_with_parent)
        self._clients = []
        try:
            self._listening(port)
            for segment in (SEGMENT, 0, 0):
                self._clients.append(Process(Client, f"127.0.0.1:{port}", segment))
        except BaseException:
            self.close()
            raise
        _, self._writer, self._reader = self._clients
        self._sum = 0

    def _listening(self, port: int) -> None:
        for _ in range(100):
            if self._master.poll() is not None:
                self._log.seek(0)
                raise RuntimeError(f"mooncake_master ended with status {self._master.returncode}: {self._log.read()[-2000:]}")
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.1)
        raise TimeoutError(f"mooncake_master does not listen on port {port} after 10 s")

    def prepare(self, shape: Shape) -> None:
        self._sum = self._writer.call("prepare", shape, True)
        self._reader.call("prepare", shape, False)

    def round(self, shape: Shape) -> dict[str, float]:
        put = self._writer.call("put")
        get, sum = self._reader.call("get")
        clear = self._writer.call("clear")
        if sum != self._sum:
            raise RuntimeError(f"{self.name}, {shape.name}: sum {sum} of {self._sum}")
        return dict(put=put, get=get, clear=clear)

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self._master.terminate()
        self._master.wait(10)
