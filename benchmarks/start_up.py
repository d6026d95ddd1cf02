"""How long the command line takes to answer: `--help`, `plan demo`, and `run demo` when all is there already.

    python benchmarks/start_up.py [--store DIR]

Prints the median and the range of five runs of each, in seconds. `run demo` is measured only if the store already
holds a finished demo.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

RUNS = 5


def seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", help="store to plan in (default: the usual one)")
    store = parser.parse_args().store
    program = str(Path(sys.executable).with_name("sahajflow"))
    where = ["--store", store] if store else []
    plan = [program, "plan", "demo", *where]
    commands = {"--help": [program, "--help"], "plan demo": plan}
    planned = subprocess.run(plan, check=True, capture_output=True, text=True).stdout
    if "0 to run" in planned and "0 wait" in planned:
        commands["run demo (all reused)"] = [program, "run", "demo", *where]
    else:
        print("run demo: not measured, the store holds no finished demo")
    for name, command in commands.items():
        times = [seconds(command) for _ in range(RUNS)]
        print(
            f"{name:<24} median {statistics.median(times):.2f} s  ({min(times):.2f} to {max(times):.2f}, n = {RUNS})"
        )


if __name__ == "__main__":
    main()
