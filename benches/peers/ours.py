"""This repository's side: the program `peers` (benches/src/bin/peers.rs), asked line by line."""

import json
import subprocess

from tables import Shape


class Ours:
    """One way of the program that `program` is; both ways share its processes."""

    def __init__(self, program: "Program", way: str):
        self.name, self._program, self._way = f"ours, {way}", program, way

    def prepare(self, shape: Shape) -> None:
        pass

    def round(self, shape: Shape) -> dict[str, float]:
        round = self._program.ask(f"round {shape.name} {self._way}")
        if round.pop("bytes") != shape.bytes():
            raise RuntimeError(f"{self.name}, {shape.name}: tables.py and shapes.rs differ in the size of the table")
        return round

    def small(self, clients: int) -> dict[str, tuple[float, float]]:
        """p50 and p99 by kind of call, in microseconds."""
        calls = self._program.ask(f"small {self._way} {clients}")
        return {call["kind"]: (call["p50"], call["p99"]) for call in calls}

    def close(self) -> None:
        self._program.close()


class Program:
    """The program `peers`; it ends with its standard input."""

    def __init__(self, path: str):
        self._process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, line: str):
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        said = self._process.stdout.readline()
        if not said:
            raise RuntimeError(f"peers: it ended with status {self._process.wait()} at `{line}`")
        return json.loads(said)

    def close(self) -> None:
        if not self._process.stdin.closed:
            self._process.stdin.close()
            self._process.wait(30)
