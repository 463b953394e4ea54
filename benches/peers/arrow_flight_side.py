"""Stock pyarrow Flight: a server that keeps tables, a writer and a reader, TCP on the loopback interface."""

import threading
import time

import pyarrow
import pyarrow.flight

from processes import Process
from tables import Shape, lens, make, total


class Server(pyarrow.flight.FlightServerBase):
    def __init__(self):
        super().__init__("grpc://127.0.0.1:0")
        self._tables: dict[bytes, pyarrow.Table] = {}
        threading.Thread(target=self.serve, daemon=True).start()

    def where(self) -> int:
        return self.port

    def do_put(self, context, descriptor, reader, writer):
        self._tables[descriptor.path[0]] = reader.read_all()

    def do_get(self, context, ticket):
        return pyarrow.flight.RecordBatchStream(self._tables[ticket.ticket])

    def do_action(self, context, action):
        del self._tables[action.body.to_pybytes()]
        return []


class Client:
    def __init__(self, port: int):
        self._client = pyarrow.flight.connect(f"grpc://127.0.0.1:{port}")
        self._table = None

    def prepare(self, shape: Shape) -> int:
        self._table = None
        table = make(shape)
        self._table = arrow_table(shape, table)
        return total(table)

    def put(self, name: str) -> float:
        begun = time.perf_counter()
        descriptor = pyarrow.flight.FlightDescriptor.for_path(name)
        writer, _ = self._client.do_put(descriptor, self._table.schema)
        writer.write_table(self._table)
        writer.close()
        return time.perf_counter() - begun

    def get(self, name: str) -> tuple[float, int]:
        begun = time.perf_counter()
        got = self._client.do_get(pyarrow.flight.Ticket(name)).read_all()
        sum = total({name: [cells(chunk) for chunk in got[name].chunks] for name in got.column_names})
        return time.perf_counter() - begun, sum

    def clear(self, name: str) -> float:
        begun = time.perf_counter()
        list(self._client.do_action(pyarrow.flight.Action("drop", name.encode())))
        return time.perf_counter() - begun


def arrow_table(shape: Shape, table: dict[str, object]) -> pyarrow.Table:
    arrays = {}
    for name, kind, length in shape.columns:
        if kind == "text":
            arrays[name] = pyarrow.array(table[name], pyarrow.string())
        elif kind == "dense":
            arrays[name] = pyarrow.FixedSizeListArray.from_arrays(table[name].reshape(-1), length)
        else:
            offsets = pyarrow.array([0, *lens(shape.rows, length)], pyarrow.int32()).to_numpy().cumsum(dtype="int32")
            arrays[name] = pyarrow.ListArray.from_arrays(offsets, table[name])
    return pyarrow.table(arrays)


def cells(chunk: pyarrow.Array):
    """The elements or bytes of a chunk's cells, without a copy."""
    if not pyarrow.types.is_string(chunk.type):
        return chunk.flatten().to_numpy()
    import numpy

    ends = numpy.frombuffer(chunk.buffers()[1], numpy.int32)[chunk.offset : chunk.offset + len(chunk) + 1]
    return numpy.frombuffer(chunk.buffers()[2], numpy.uint8)[ends[0] : ends[-1]]


class ArrowFlight:
    name = "pyarrow Flight"

    def __init__(self):
        self._server = Process(Server)
        port = self._server.call("where")
        self._writer, self._reader, self._sum = Process(Client, port), Process(Client, port), 0

    def prepare(self, shape: Shape) -> None:
        self._sum = self._writer.call("prepare", shape)

    def round(self, shape: Shape) -> dict[str, float]:
        put = self._writer.call("put", shape.name)
        get, sum = self._reader.call("get", shape.name)
        clear = self._writer.call("clear", shape.name)
        if sum != self._sum:
            raise RuntimeError(f"{self.name}, {shape.name}: sum {sum} of {self._sum}")
        return dict(put=put, get=get, clear=clear)

    def close(self) -> None:
        for process in (self._writer, self._reader, self._server):
            process.close()
