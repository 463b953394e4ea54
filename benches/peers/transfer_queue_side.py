"""TransferQueue with SimpleStorage, by its key-value interface as its perftest.py uses it: a writer and a reader actor."""

from __future__ import annotations

import threading
import time

import ray_cluster
from tables import Shape, lens, make, total, words


class Client:
    """The writer or the reader. Times are of TransferQueue's calls alone and, of a get, with the look at every byte."""

    def __init__(self):
        import transfer_queue

        transfer_queue.init()
        self._tq, self._table, self._keys = transfer_queue, None, []

    def prepare(self, shape: Shape, write: bool) -> int:
        self._keys = [f"test_key_{row}" for row in range(shape.rows)]
        self._table = None
        if not write:
            return 0
        table = make(shape)
        self._table = tensor_dict(shape, table)
        return total(table)

    def put(self, partition: str) -> float:
        begun = time.perf_counter()
        self._tq.kv_batch_put(keys=self._keys, partition_id=partition, fields=self._table)
        return time.perf_counter() - begun

    def list(self, partition: str) -> tuple[float, int]:
        begun = time.perf_counter()
        keys = self._tq.kv_list(partition_id=partition)[partition]
        return time.perf_counter() - begun, len(keys)

    def get(self, partition: str) -> tuple[float, int]:
        begun = time.perf_counter()
        got = self._tq.kv_batch_get(keys=self._keys, partition_id=partition)
        sum = total({name: cells(got.get(name)) for name in got.keys()})
        return time.perf_counter() - begun, sum

    def clear(self, partition: str) -> float:
        begun = time.perf_counter()
        self._tq.kv_clear(keys=self._keys, partition_id=partition)
        return time.perf_counter() - begun

    def small(self, clients: int, passes: int, number: int) -> dict[str, list[float]]:
        """Seconds of one-row calls by threads that share this process's client (there is one a process)."""
        import torch

        times: dict[str, list[float]] = {kind: [] for kind in SMALL}
        partition, claim = f"small_{number}", self._tq.get_client().get_meta

        def work(thread: int) -> None:
            for at in range(passes):
                key = f"key_{thread}_{at}"
                calls = [
                    lambda: self._tq.kv_put(key, partition, fields={"x": torch.tensor([at])}),
                    lambda: int(self._tq.kv_batch_get([key], partition).get("x").sum()),
                    lambda: self._tq.kv_put(key, partition, tag={"seen": at}),
                    # There is no commit: who claims a row has consumed it. Each thread has put one, so there is one.
                    lambda: claim(["x"], 1, partition, mode="fetch", task_name="small"),
                ]
                for kind, call in zip(SMALL, calls):
                    begun = time.perf_counter()
                    call()
                    times[kind].append(time.perf_counter() - begun)

        threads = [threading.Thread(target=work, args=(thread,)) for thread in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        keys = [f"key_{thread}_{at}" for thread in range(clients) for at in range(passes)]
        if any(len(all) != len(keys) for all in times.values()):
            raise RuntimeError("small calls: a thread ended early")
        self._tq.kv_clear(keys, partition)
        return times

    def close(self) -> None:
        self._tq.close()


# As tq_benches::small::KINDS.
SMALL = ("put", "get", "tag update", "claim + commit")
# Calls of each kind, over all clients: they take milliseconds each.
SMALL_CALLS = 320


def tensor_dict(shape: Shape, table: dict[str, object]):
    """The table as perftest.py has it: dense tensors, jagged nested tensors, stacks of strings."""
    import torch
    from tensordict import NonTensorStack, TensorDict

    fields = TensorDict(batch_size=(shape.rows,))
    for name, kind, length in shape.columns:
        if kind == "text":
            fields.set(name, NonTensorStack.from_list(table[name]))
            continue
        tensor = torch.from_numpy(table[name])
        if kind == "ragged":
            rows = torch.split(tensor, lens(shape.rows, length))
            tensor = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
        fields.set(name, tensor)
    return fields


def cells(got) -> object:
    """What a column came back as, in terms of `words`: without a copy, where it lies in one piece."""
    import torch

    if not isinstance(got, torch.Tensor):
        return got.tolist()
    if not got.is_nested:
        return got.numpy()
    return got.values().numpy() if got.layout == torch.jagged else [row.numpy() for row in got.unbind()]


class TransferQueue:
    name = "TransferQueue SimpleStorage"

    def __init__(self):
        self._ray = ray_cluster.start()
        actor = self._ray.remote(Client).options(num_cpus=0.001)
        # The first one starts the controller and the storage units: two, as its config.yaml has it.
        self._writer = actor.remote()
        self._wait(self._writer.prepare.remote(Shape("", 0, ()), False))
        self._reader = actor.remote()
        self._sum, self._round = 0, 0

    def _wait(self, reference):
        return self._ray.get(reference, timeout=180)

    def prepare(self, shape: Shape) -> None:
        self._sum = self._wait(self._writer.prepare.remote(shape, True))
        self._wait(self._reader.prepare.remote(shape, False))

    def round(self, shape: Shape) -> dict[str, float]:
        partition = f"train_{shape.name}"
        put = self._wait(self._writer.put.remote(partition))
        listed, keys = self._wait(self._reader.list.remote(partition))
        get, sum = self._wait(self._reader.get.remote(partition))
        clear = self._wait(self._writer.clear.remote(partition))
        if (keys, sum) != (shape.rows, self._sum):
            raise RuntimeError(f"{self.name}, {shape.name}: {keys} rows of {shape.rows}, sum {sum} of {self._sum}")
        return dict(put=put, list=listed, get=get, clear=clear)

    def small(self, clients: int) -> dict[str, tuple[float, float]]:
        """The middle one, and the one of a hundred that takes longest, by kind, in microseconds."""
        self._round += 1
        times = self._wait(self._writer.small.remote(clients, SMALL_CALLS // clients, self._round))
        share = lambda all, share: 1e6 * sorted(all)[int(len(all) * share)]
        return {kind: (share(all, 0.5), share(all, 0.99)) for kind, all in times.items()}

    def close(self) -> None:
        self._wait(self._writer.close.remote())
        ray_cluster.stop()
