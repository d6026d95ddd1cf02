"""Seconds of an averaging among peers with unlike networks: shares by bandwidth against equal shares.

    python benchmarks/shaped_averaging.py [--values 4000000] [--rounds 3]

Four peers in network namespaces of their own, joined by a router in a fifth: three with 200, 100 and 50 Mb/s in both
directions (``tc tbf``), and one with 100 Mb/s whose firewall (``iptables``) lets no connection in. They average a
gradient of so many values without compression: once each says what its bandwidth is, as ``bandwidth_mbps`` does, and
once all say the same. The two kinds of rounds take turns. Needs root; everything made is removed at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RATES = {"fast": 200, "middle": 100, "slow": 50, "firewalled": 100}
"""Mb/s of each peer, in each direction."""

PORT = 30000
CLIENT = "firewalled"
PATIENCE, TIMEOUT = 20.0, 120.0
"""Seconds in which a group is waited for, and in which an averaging has to be done."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--values", type=int, default=4_000_000, help="of the gradient, 4 bytes each")
    parser.add_argument("--rounds", type=int, default=3, help="of each kind")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer:
        peer(arguments)
        return
    problem = why_not()
    if problem is not None:
        sys.exit(problem)
    found = measure(arguments.values, arguments.rounds)
    for kind in ("adaptive", "equal"):
        shares = ", ".join(f"{name} {share:.1%}" for name, share in found[kind]["shares"].items())
        seconds = ", ".join(f"{one:.2f}" for one in found[kind]["seconds"])
        print(f"{kind}: {statistics.median(found[kind]['seconds']):.2f} s ({seconds}); aggregated: {shares}")
    print(f"equal / adaptive: {found['ratio']:.2f}")


def why_not() -> str | None:
    """Why networks cannot be shaped here; None if they can."""
    if os.geteuid() != 0:
        return "no network namespaces here: not root"
    missing = [program for program in ("ip", "tc", "iptables") if shutil.which(program) is None]
    if missing:
        return f"no network namespaces here: {', '.join(missing)} not installed"
    try:
        with namespaces({"trial": 50}, firewalled="trial"):
            return None
    except subprocess.CalledProcessError as error:
        return f"no network namespaces here: {' '.join(error.cmd)} is not permitted"


def _do(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@contextlib.contextmanager
def namespaces(rates: dict[str, int], firewalled: str) -> Iterator[dict[str, tuple[str, str]]]:
    """A namespace and an address for each name, shaped; all are removed at the end, with what runs in them."""
    mark = f"sahajflow-{os.getpid()}"
    router, made = f"{mark}-router", {}
    try:
        _do("ip", "netns", "add", router)
        _do("ip", "netns", "exec", router, "sysctl", "-q", "-w", "net.ipv4.ip_forward=1")
        for number, (name, rate) in enumerate(rates.items(), 1):
            space, here, there = f"{mark}-{name}", f"sf{number}", "eth0"
            _do("ip", "netns", "add", space)
            made[name] = (space, f"10.77.{number}.2")
            _do("ip", "-n", router, "link", "add", here, "type", "veth", "peer", "name", there, "netns", space)
            _do("ip", "-n", router, "address", "add", f"10.77.{number}.1/24", "dev", here)
            _do("ip", "-n", space, "address", "add", f"10.77.{number}.2/24", "dev", there)
            for where, device in ((router, here), (space, there), (space, "lo")):
                _do("ip", "-n", where, "link", "set", device, "up")
            _do("ip", "-n", space, "route", "add", "default", "via", f"10.77.{number}.1")
            for where, device in ((router, here), (space, there)):  # download and upload
                shaping = ("root", "tbf", "rate", f"{rate}mbit", "burst", "64kb", "latency", "100ms")
                _do("tc", "-n", where, "qdisc", "add", "dev", device, *shaping)
        space, _ = made[firewalled]
        _do("ip", "netns", "exec", space, "iptables", "-A", "INPUT", "-i", "eth0", "-p", "tcp", "--syn", "-j", "DROP")
        yield made
    finally:
        for space in (*(space for space, _ in made.values()), router):
            found = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True)
            for pid in found.stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), 9)
            subprocess.run(["ip", "netns", "delete", space], capture_output=True)


def measure(values: int, rounds: int, rates: dict[str, int] = RATES, client: str = CLIENT) -> dict[str, Any]:
    """Average in shaped networks.

    Returns:
        For ``adaptive`` and ``equal``: ``seconds`` of each round, of the slowest peer, and ``shares``, of the values
        that each peer aggregated; ``ratio`` of the median seconds; ``reached``: whether anybody could connect to the
        firewalled peer; ``groups``: sizes of the groups.
    """
    with tempfile.TemporaryDirectory() as place, namespaces(rates, client) as spaces:
        folder, address, processes = Path(place), "", []
        for name, (space, host) in spaces.items():
            command = [sys.executable, "-P", __file__, "--peer", name, "--folder", place, "--values", str(values)]
            command += ["--rounds", str(rounds), "--address", f"/ip4/{host}/tcp/{PORT}"]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "INITIAL_PEER": address, "RATE": str(rates[name])}
            with (folder / f"{name}.log").open("wb") as log:
                processes.append(
                    subprocess.Popen(
                        ["ip", "netns", "exec", space, *command],
                        env=environment | {"IS_CLIENT": "1" if name == client else ""},
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
            if not address:
                address = _wait_for(folder / f"{name}.address", processes[-1], folder / f"{name}.log")
        results = {
            name: json.loads(_wait_for(folder / f"{name}.json", process, folder / f"{name}.log"))
            for name, process in zip(spaces, processes, strict=True)
        }
        reached = [_connects(spaces[name][0], spaces[client][1]) for name in spaces if name != client]
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()
    found: dict[str, Any] = {"reached": any(reached)}
    for kind in ("adaptive", "equal"):
        found[kind] = {
            "seconds": [
                max(result[kind][number]["reducing"] for result in results.values()) for number in range(rounds)
            ],
            "shares": {
                name: statistics.mean(one["share"] for one in result[kind]) for name, result in results.items()
            },
        }
    found["groups"] = sorted({one["group"] for result in results.values() for kind in result.values() for one in kind})
    medians = [statistics.median(found[kind]["seconds"]) for kind in ("equal", "adaptive")]
    return found | {"ratio": medians[0] / medians[1]}


def _wait_for(path: Path, process: subprocess.Popen[bytes], log: Path, seconds: float = 400.0) -> str:
    deadline = time.monotonic() + seconds
    while not path.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{path.name} did not come:\n{log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.05)
    return path.read_text()


def _connects(space: str, host: str) -> bool:
    """Whether somebody in this namespace gets a connection to the host's port of libp2p."""
    code = f"import socket; socket.create_connection(({host!r}, {PORT}), timeout=3)"
    return (
        subprocess.run(["ip", "netns", "exec", space, sys.executable, "-c", code], capture_output=True).returncode == 0
    )


def peer(arguments: argparse.Namespace) -> None:
    """One peer: averages, and writes what it saw of each round."""
    import multiprocessing

    import torch

    from tasks.pretraining.collaborative import network
    from tasks.pretraining.collaborative.averaging import PeerGradientAverager, gradient_compression, result_of
    from tasks.pretraining.collaborative.screening import Screen

    multiprocessing.set_start_method("fork", force=True)
    torch.set_num_threads(1)
    others, is_client, rate = os.environ["INITIAL_PEER"], bool(os.environ["IS_CLIENT"]), float(os.environ["RATE"])
    dht = network.start_dht([arguments.address], [others] if others else [], client_mode=is_client)
    torch.manual_seed(len(arguments.peer))
    parameter = torch.nn.Parameter(torch.zeros(arguments.values))
    averagers = {
        kind: PeerGradientAverager(
            [parameter],
            dht=dht,
            prefix=kind,
            screen=Screen(20.0, most_weight=1.0),
            bandwidth=0.0 if is_client else bandwidth,
            client_mode=is_client,
            compression=gradient_compression("none"),
            min_matchmaking_time=5.0,
            request_timeout=3.0,
            allreduce_timeout=TIMEOUT,
            allow_state_sharing=False,
            start=True,
        )
        for kind, bandwidth in (("adaptive", rate), ("equal", 100.0))
    }
    (arguments.folder / f"{arguments.peer}.building").write_text(str(dht.get_visible_maddrs()[0]))
    os.replace(arguments.folder / f"{arguments.peer}.building", arguments.folder / f"{arguments.peer}.address")
    while len(list(arguments.folder.glob("*.address"))) < len(RATES):
        time.sleep(0.1)
    seen: dict[str, list[dict[str, Any]]] = {kind: [] for kind in averagers}
    for number in range(arguments.rounds):
        for kind, averager in averagers.items():
            parameter.grad = torch.randn(arguments.values)
            averager.reset_accumulated_grads_()
            averager.accumulate_grads_(1)
            control = averager.begin(len(RATES), f"{number:08b}", PATIENCE, TIMEOUT)
            averager.step(control=control, wait=False)
            facts = result_of(control, PATIENCE, TIMEOUT)
            seen[kind].append(
                {"reducing": facts["reducing"], "share": facts["aggregated"], "group": len(facts["group"])}
            )
    building = arguments.folder / f"{arguments.peer}.building"
    building.write_text(json.dumps(seen))
    os.replace(building, arguments.folder / f"{arguments.peer}.json")
    time.sleep(600)  # whoever started this peer ends it, once the slower ones are done too


if __name__ == "__main__":
    main()
