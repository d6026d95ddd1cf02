"""`sahajflow coordinate` and `sahajflow join`: the same coordinator and peers as in a run, started by hand.

A collaboration that was started with ``coordinate`` is the stage ``pretrain`` of its recipe, with peers from
elsewhere: its result is published in the store under the same fingerprint, and ``run`` reuses it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.contract import StageError, UserError

if TYPE_CHECKING:
    from flows.execution import Options
    from tasks.contract import Progress

DEFAULT_LISTEN = ("/ip4/0.0.0.0/tcp/31337",)
"""Where a coordinator listens: a fixed port, so that its address is the same after a restart."""

LOOK_SECONDS = 0.25


def coordinating(options: Options, peers: int, listen: Sequence[str], announce: Sequence[str]) -> Options:
    """The options of a run that is a collaboration: up to ``pretrain``, with these local peers and addresses."""
    changes = [
        "pretraining.engine=collaborative",
        f"pretraining.collaborative.peers={peers}",
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


def join(
    addresses: Sequence[str],
    name: str | None,
    store: Path,
    workers: int | None,
    progress: Progress,
    pass_file: str | None = None,
) -> str:
    """Take part in the collaboration at these addresses until its end.

    Args:
        addresses: multiaddresses of its coordinator or other members.
        name: how this peer is called in the ledger; the host's name if not given.
        store: where the packed corpus and the tokenizer are.
        workers: threads.
        progress: told of step, loss, peers.
        pass_file: from the organiser, where the collaboration asks for one.

    Returns:
        One line on how it ended.

    Raises:
        UserError: wrong address, data that is not here, other library versions.
        StageError: the peer failed.
    """
    check_addresses(addresses)
    name = checked_name(name)
    if importlib.util.find_spec("hivemind") is None:
        raise UserError("a peer needs hivemind, which has wheels for Linux x86-64 only and is not installed here")
    from flows.execution import set_workers
    from tasks.pretraining.collaborative import status
    from tasks.pretraining.collaborative.engine import command
    from tasks.store import home
    from tasks.supervision import Owned

    set_workers(workers)
    place = hashlib.sha256(" ".join(sorted(addresses)).encode()).hexdigest()[:12]
    folder = home() / "swarms" / f"{place}-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    threads = int(os.environ["OMP_NUM_THREADS"])
    arguments = (str(folder), name, "--store", str(store), "--join", *addresses)
    if pass_file is not None:
        from tasks.pretraining.collaborative.passes import read_pass

        read_pass(Path(pass_file))  # what is wrong with it is said before anything is started
        arguments = (*arguments, "--pass", str(Path(pass_file).resolve()))
    for left in (f"{name}.status.json", f"{name}.error"):
        (folder / left).unlink(missing_ok=True)
    with Owned([command("peer", arguments, threads, folder, name)], leader=name, folder=folder) as owned:
        while not owned.ended():
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
