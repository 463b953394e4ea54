"""Plays rounds of this repository's store and of its peers in turns, and compares medians.

Started by scripts/peers-store.sh. Every side has a writer and a reader in processes of their own; a round is put, list, get, clear of
one table; the reader adds up every word that it got within its time, and the sum must be that of what was put. The first round of each
side brings its pages and is left out. Writes target/peers/rounds.json (every time), peers.md (tables) and peers.svg (bars) beside it
and, through the program `peers report`, target/bench/peers.json; ends with 1 when a budget is missed that docs/known-gaps.md does not
list, and when a side could not be measured.
"""

import argparse
import importlib
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time
import traceback

import chart
from ours import Ours, Program
from tables import SHAPES

GIB = 1 << 30
SIDES = {
    "transferqueue": ("transfer_queue_side", "TransferQueue"),
    "ray": ("ray_side", "RayObjects"),
    "flight": ("arrow_flight_side", "ArrowFlight"),
    "mooncake": ("mooncake_side", "Mooncake"),
}
# Which of our ways stands beside which side, and how many times as fast it must be, where that is promised.
AGAINST = [
    ("shm", "transferqueue", {"simple": 10.0, "complex": 10.0}),
    ("flight", "transferqueue", {"simple": 3.0, "complex": 3.0}),
    ("shm", "ray", {}),
    ("flight", "flight", {}),
    ("flight", "mooncake", {}),
]


def note(text: str) -> None:
    print(f"peers: {text}", file=sys.stderr, flush=True)


class Run:
    """The sides that are measured, and why the others are not."""

    def __init__(self, sides: dict, failed: dict[str, str]):
        self.sides, self.failed = sides, failed

    def attempt(self, key: str, what: str, call):
        """What the side answers. One that fails is taken out, and its reason kept."""
        try:
            return call()
        except Exception as error:
            traceback.print_exc()
            self.failed[key] = f"{what}: {error}"
            self.close(key)
            return None

    def close(self, key: str) -> None:
        side = self.sides.pop(key, None)
        try:
            if side is not None:
                side.close()
        except Exception as error:
            note(f"{key}, while it was closed: {error}")

    def shape(self, name: str, rounds: int) -> dict[str, list]:
        """Times of all rounds but the first, by side."""
        shape, times = SHAPES[name], {key: [] for key in self.sides}
        for key in list(self.sides):
            self.attempt(key, f"{name}, preparing", lambda: self.sides[key].prepare(shape))
        for number in range(rounds + 1):
            for key in list(self.sides):
                round = self.attempt(key, f"{name}, round {number}", lambda: self.sides[key].round(shape))
                if round is not None and number > 0:
                    times[key].append(round)
            note(f"{name}: round {number} of {rounds}")
        return times

    def small(self, clients: int, rounds: int) -> dict[str, dict[str, tuple[float, float]]]:
        """p50 and p99 of small calls in microseconds, by kind and side: medians over all rounds but the first."""
        able = [key for key, side in self.sides.items() if hasattr(side, "small")]
        all: dict[str, list] = {key: [] for key in able}
        for number in range(rounds + 1):
            for key in filter(self.sides.__contains__, able):
                what = f"small calls of {clients}, round {number}"
                round = self.attempt(key, what, lambda: self.sides[key].small(clients))
                if round is not None and number > 0:
                    all[key].append(round)
            note(f"small calls of {clients} clients: round {number} of {rounds}")
        middle = lambda rounds, kind, at: statistics.median(round[kind][at] for round in rounds)
        kinds = all[able[0]][0]
        return {kind: {key: tuple(middle(all[key], kind, at) for at in (0, 1)) for key in able if all[key]} for kind in kinds}


def medians(rounds: list[dict]) -> dict[str, float]:
    keys = [key for key in ("put", "list", "get", "clear") if all(key in round for round in rounds)]
    found = {key: statistics.median(round[key] for round in rounds) for key in keys}
    found["both"] = statistics.median(round["put"] + round["get"] for round in rounds)
    return found


def figures(times: dict, names: dict[str, str]) -> list[dict]:
    """Rows as tq_benches::Row: speeds in GiB/s, and their ratios against the budgets."""
    rows = []
    for shape, by_side in times.items():
        size = SHAPES[shape].bytes() / GIB
        middle = {key: medians(rounds) for key, rounds in by_side.items() if rounds}
        for way, peer, budgets in AGAINST:
            us = f"ours-{way}"
            if us not in middle or peer not in middle:
                continue
            for what, label in (("both", "put + get"), ("put", "put"), ("get", "get")):
                mine, theirs = size / middle[us][what], size / middle[peer][what]
                row = dict(case=f"{shape}, {label}, {way}, beside {names[peer]}", unit="GiB/s", ours=mine, theirs=theirs)
                row |= dict(against=names[peer], ratio=mine / theirs, better="more")
                rows.append(row | dict(budget=budgets.get(shape) if what == "both" else None))
    return rows


def small_figures(small: dict[int, dict], names: dict[str, str]) -> list[dict]:
    """Rows of the small calls; a ratio below 1 is how much sooner ours are answered."""
    rows = []
    for clients, kinds in small.items():
        for kind, by_side in kinds.items():
            for way in ("shm", "flight"):
                if not {f"ours-{way}", "transferqueue"} <= by_side.keys():
                    continue
                mine, theirs = by_side[f"ours-{way}"][0], by_side["transferqueue"][0]
                row = dict(case=f"{kind}, {way}, {clients} clients, p50", unit="us", ours=mine, theirs=theirs, better="less")
                rows.append(row | dict(against=names["transferqueue"], ratio=mine / theirs, budget=None))
    return rows


def small_table(small: dict[int, dict], names: dict[str, str]) -> str:
    sides = list(next(iter(next(iter(small.values())).values())))
    text = ["One row at a time, p50 / p99 in µs, medians of the rounds:", ""]
    text += [f"| call, clients | {' | '.join(names[key] for key in sides)} |", "|---" * (len(sides) + 1) + "|"]
    for clients, kinds in small.items():
        for kind, by_side in kinds.items():
            cells = [" / ".join(f"{us:,.0f}" for us in by_side[key]) if key in by_side else "–" for key in sides]
            text.append(f"| {kind}, {clients} | {' | '.join(cells)} |")
    return "\n".join(text)


def tables(times: dict, names: dict[str, str], machine: str) -> str:
    """For docs/performance.md."""
    text = [machine, ""]
    for shape, by_side in times.items():
        size = SHAPES[shape].bytes()
        text += [f"`{shape}`, {size / (1 << 20):.0f} MiB, medians of {len(next(iter(by_side.values())))} rounds:", ""]
        text += ["| side | put, GiB/s | get and look, GiB/s | put + get, ms | list, ms | clear, ms |", "|---|---|---|---|---|---|"]
        for key, rounds in by_side.items():
            if rounds:
                found = medians(rounds)
                ms = lambda key: f"{1e3 * found[key]:.1f}" if key in found else "–"
                speeds = [f"{size / GIB / found[key]:.2f}" for key in ("put", "get")]
                text.append(f"| {names[key]} | {' | '.join(speeds)} | {ms('both')} | {ms('list')} | {ms('clear')} |")
        text.append("")
    return "\n".join(text)


def machine() -> str:
    model = [line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    load = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    return f"{len(model)} × {model[0]}, {memory:.0f} GiB, Linux {platform.release()}; load {load}; {time.strftime('%Y-%m-%d')}."


def main() -> int:
    parse = argparse.ArgumentParser()
    parse.add_argument("--program", required=True, help="the program `peers`")
    parse.add_argument("--out", type=pathlib.Path, required=True, help="folder for rounds.json and peers.md")
    parse.add_argument("--rounds", type=int, default=5)
    parse.add_argument("--shapes", default=",".join(SHAPES))
    parse.add_argument("--sides", default=",".join(SIDES))
    parse.add_argument("--small", action=argparse.BooleanOptionalAction, default=True, help="small calls, too")
    parse.add_argument("--missing", action="append", default=[], help="`NAME: why` of a side that could not be installed")
    args = parse.parse_args()
    if args.rounds < 5:
        parse.error(f"--rounds: found {args.rounds}, at least 5 make a median")

    before = machine()
    program = Program(args.program)
    run = Run({f"ours-{way}": Ours(program, way) for way in ("shm", "flight")}, dict(missing.split(": ", 1) for missing in args.missing))
    try:
        for key in filter(None, args.sides.split(",")):
            module, name = SIDES[key]
            if key not in run.failed:
                side = run.attempt(key, "start", lambda: getattr(importlib.import_module(module), name)())
                run.sides |= {key: side} if side else {}
        names = {key: side.name for key, side in run.sides.items()}
        times = {name: run.shape(name, args.rounds) for name in filter(None, args.shapes.split(","))}
        small = {clients: run.small(clients, args.rounds) for clients in (1, 16)} if args.small else {}
    finally:
        for key in list(run.sides):
            run.close(key)

    args.out.mkdir(parents=True, exist_ok=True)
    record = dict(machine=before, rounds=times, small=small, failed=run.failed)
    (args.out / "rounds.json").write_text(json.dumps(record, indent=1) + "\n")
    text = tables(times, names, f"{before} After it, load {os.getloadavg()[0]:.1f}.")
    text += "\n" + small_table(small, names) if small else ""
    (args.out / "peers.md").write_text(text + "\n")
    speeds = {
        shape: {names[key]: SHAPES[shape].bytes() / GIB / medians(rounds)["both"] for key, rounds in by_side.items() if rounds}
        for shape, by_side in times.items()
    }
    if speeds:
        svg = chart.bars("put + get (every byte read), of the table's size, each time", speeds, "GiB/s")
        (args.out / "peers.svg").write_text(svg)
    print(text, flush=True)
    rows = json.dumps(figures(times, names) + small_figures(small, names))
    status = subprocess.run([args.program, "report"], input=rows, text=True).returncode
    for key, why in run.failed.items():
        note(f"NOT MEASURED: {key}: {why.strip().splitlines()[-1]}")
    return 1 if run.failed else status


if __name__ == "__main__":
    sys.exit(main())
