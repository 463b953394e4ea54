"""Ray's object store: a writer puts numpy arrays, which a reader of the same host maps (Ray's fastest way)."""

import time

import ray_cluster
from tables import Shape, make, total


class Client:
    def __init__(self):
        import ray

        self._ray, self._table, self._reference = ray, None, None

    def prepare(self, shape: Shape) -> int:
        self._table = None
        self._table = make(shape)
        return total(self._table)

    def forget(self) -> None:
        self._table = None

    def put(self):
        begun = time.perf_counter()
        self._reference = self._ray.put(self._table)
        # In a list: Ray would pass a bare reference on as its value.
        return time.perf_counter() - begun, [self._reference]

    def get(self, references) -> tuple[float, int]:
        begun = time.perf_counter()
        sum = total(self._ray.get(references[0]))
        return time.perf_counter() - begun, sum

    def clear(self) -> float:
        begun = time.perf_counter()
        self._reference = None
        return time.perf_counter() - begun


class RayObjects:
    name = "Ray object store"

    def __init__(self):
        self._ray = ray_cluster.start()
        actor = self._ray.remote(Client).options(num_cpus=0.001)
        self._writer, self._reader, self._sum = actor.remote(), actor.remote(), 0

    def _wait(self, reference):
        return self._ray.get(reference, timeout=180)

    def prepare(self, shape: Shape) -> None:
        self._sum = self._wait(self._writer.prepare.remote(shape))

    def round(self, shape: Shape) -> dict[str, float]:
        put, references = self._wait(self._writer.put.remote())
        get, sum = self._wait(self._reader.get.remote(references))
        del references
        clear = self._wait(self._writer.clear.remote())
        if sum != self._sum:
            raise RuntimeError(f"{self.name}, {shape.name}: sum {sum} of {self._sum}")
        return dict(put=put, get=get, clear=clear)

    def close(self) -> None:
        ray_cluster.stop()
