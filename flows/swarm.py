"""`sahajflow coordinate` and `sahajflow join`: the same coordinator and peers as in a run, started by hand.

A collaboration that was started with ``coordinate`` is the stage ``pretrain`` of its recipe, with peers from
elsewhere: its result is published in the store under the same fingerprint, and ``run`` reuses it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import os
import re
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.checks import Check
from tasks.contract import StageError, UserError

if TYPE_CHECKING:
    from flows.execution import Options
    from tasks.contract import Progress
    from tasks.pretraining.collaborative.roles import Role

logger = logging.getLogger("flows")

DEFAULT_LISTEN = ("/ip4/0.0.0.0/tcp/31337",)
"""Where a coordinator listens: a fixed port, so that its address is the same after a restart."""

LOOK_SECONDS = 0.25


def coordinating(
    options: Options, peers: int, keepers: int, listen: Sequence[str], announce: Sequence[str]
) -> Options:
    """The options of a run that is a collaboration: up to ``pretrain``, with these local members and addresses."""
    changes = [
        "pretraining.engine=collaborative",
        f"pretraining.collaborative.peers={peers}",
        f"pretraining.collaborative.keepers={keepers}",
        f"pretraining.collaborative.listen={_list(listen or DEFAULT_LISTEN)}",
    ]
    if announce:
        changes.append(f"pretraining.collaborative.announce={_list(announce)}")
    return replace(options, until="pretrain", set_=(*options.set_, *changes))


def _list(values: Sequence[str]) -> str:
    return "[" + ", ".join(f'"{value}"' for value in values) + "]"


def check_addresses(addresses: Sequence[str]) -> None:
    """Raises UserError for one that cannot be a member's address."""
    for address in addresses:
        parts = address.split("/")
        if not address.startswith("/") or "p2p" not in parts or not parts[-1] or len(parts) < 7:
            raise UserError(
                f"{address}: is no address of a member; copy the line that `sahajflow coordinate` prints, "
                "/ip4/HOST/tcp/PORT/p2p/IDENTITY"
            )


def checked_name(name: str | None) -> str:
    """How a peer is called: as asked, or like its host.

    Raises:
        UserError: it cannot be called so; its files and processes have that name.
    """
    if name is None:
        return re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname())[:40].lstrip(".-") or "peer"
    if not re.fullmatch(r"[^\s/\\.-][^\s/\\]{0,39}", name) or not name.isprintable() or name == "supervisor":
        raise UserError(
            f"--name {name}: should be up to 40 letters and digits without blanks and slashes, and not 'supervisor'"
        )
    return name


@dataclass(frozen=True)
class Joining:
    """How to take part in a collaboration.

    Attributes:
        addresses: multiaddresses of its coordinator or other members.
        name: how this member is called in the ledger; the host's name if not given.
        role: what it does; if not given a peer, or a client where nobody can connect to this machine.
        stream: read the corpus row by row from the coordinator instead of copying it into the store.
        bandwidth: in Mb/s; measured, or the recipe's, if not given.
        micro_batch: sequences that are computed at a time; measured if not given.
        pass_file: from the organiser, where the collaboration asks for one.
    """

    addresses: Sequence[str]
    name: str | None = None
    role: Role | None = None
    stream: bool = False
    bandwidth: float | None = None
    micro_batch: int | None = None
    pass_file: str | None = None

    def arguments(self) -> list[str]:
        """For the member's command line."""
        options: dict[str, str | float | None] = {
            "--role": self.role,
            "--bandwidth": self.bandwidth,
            "--micro-batch": self.micro_batch,
        }
        if self.pass_file is not None:
            options["--pass"] = str(Path(self.pass_file).resolve())
        given = [part for name, value in options.items() if value is not None for part in (name, str(value))]
        return [*given, *(["--stream"] if self.stream else [])]


def join(asked: Joining, store: Path, workers: int | None, progress: Progress) -> str:
    """Take part in a collaboration until its end.

    Args:
        asked: in which one, and how.
        store: gets the packed corpus and the tokenizer, if they are not in it.
        workers: threads.
        progress: told of step, loss, peers.

    Returns:
        One line on how it ended.

    Raises:
        UserError: wrong address, a machine that does not fit, other library versions.
        StageError: the peer failed.
    """
    check_addresses(asked.addresses)
    name = checked_name(asked.name)
    if asked.stream and asked.role in ("auxiliary", "keeper"):
        raise UserError(f"--stream: the role {asked.role} reads no corpus; leave it out")
    if asked.micro_batch is not None and asked.role in ("auxiliary", "keeper"):
        raise UserError(f"--micro-batch: the role {asked.role} computes nothing; leave it out")
    if importlib.util.find_spec("hivemind") is None:
        raise UserError("a peer needs hivemind, which has wheels for Linux x86-64 only and is not installed here")
    from flows.execution import set_workers
    from tasks.pretraining.collaborative import machine, status
    from tasks.pretraining.collaborative.engine import command
    from tasks.store import home
    from tasks.supervision import Owned

    set_workers(workers)
    addresses = reachable(asked.addresses)
    _tell(machine.check_machine())
    place = hashlib.sha256(" ".join(sorted(asked.addresses)).encode()).hexdigest()[:12]
    folder = home() / "swarms" / f"{place}-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    threads = int(os.environ["OMP_NUM_THREADS"])
    if asked.pass_file is not None:
        from tasks.pretraining.collaborative.passes import read_pass

        read_pass(Path(asked.pass_file))  # what is wrong with it is said before anything is started
    arguments = (str(folder), name, *asked.arguments(), "--store", str(store), "--join", *addresses)
    for left in (f"{name}.status.json", f"{name}.checks.json", f"{name}.error"):
        (folder / left).unlink(missing_ok=True)
    told: list[Check] = []
    with Owned([command("peer", arguments, threads, folder, name)], leader=name, folder=folder) as owned:
        while not owned.ended():
            _tell(found := _new_checks(folder, name, told))
            told += found
            status.show(folder, name, progress)
            time.sleep(LOOK_SECONDS)
        ended = owned.exit_status()
    error = folder / f"{name}.error"
    if ended != 0 or error.exists():
        text = error.read_text(encoding="utf-8") if error.exists() else f"the peer ended with status {ended}"
        if ended == 2:
            raise UserError(text)
        raise StageError(f"{text}; its log is {folder / name}.log")
    last = status.read(folder, name)
    step, target, given = (last.get(key, 0) for key in ("step", "target", "given"))
    return f"Left at step {step:,} of {target:,}; {given:,} samples were yours."


def reachable(addresses: Sequence[str]) -> list[str]:
    """The addresses that take a connection; each of the others is named.

    Raises:
        UserError: none does.
    """
    from tasks.pretraining.collaborative.machine import dial

    problems = {address: problem for address, problem in dial(addresses).items() if problem is not None}
    told = [f"{address}: {problem}" for address, problem in problems.items()]
    if len(problems) == len(set(addresses)):
        raise UserError(
            f"{'; '.join(told)}: no member takes a connection; is the collaboration still running, and does your "
            "network let you out to that port?"
        )
    for line in told:
        logger.warning("%s: going on without this address", line)
    return [address for address in addresses if address not in problems]


def _tell(checks: Sequence[Check]) -> None:
    """One line for each finding, with its remedy if it is not fine."""
    for check in checks:
        if check.state == "ok":
            logger.info("%s: %s", check.name, check.finding)
        else:
            logger.warning("%s: %s; %s", check.name, check.finding, check.remedy)


def _new_checks(folder: Path, name: str, told: Sequence[Check]) -> list[Check]:
    """What the member has found since it was last asked."""
    try:
        found = json.loads((folder / f"{name}.checks.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    return [check for one in found if (check := Check(**one)) not in told]
