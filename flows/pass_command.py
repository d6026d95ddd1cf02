"""`sahajflow pass`: an organiser issues, revokes and lists the passes of those who may take part.

Libraries are imported inside the functions: the parser imports this module for ``--help``.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tasks.pretraining.collaborative.passes import Register


def issue(arguments: argparse.Namespace) -> int:
    """Issue a pass and write its file."""
    from flows.swarm import checked_name

    name = checked_name(arguments.name)
    file = Path(arguments.output or f"{name}.pass")
    found = _register().issue(name, arguments.days, file)
    print(f"{file}: give it to {name} alone; it counts until {_day(found.expires)}")
    return 0


def revoke(arguments: argparse.Namespace) -> int:
    """Let a pass count no longer."""
    found = _register().revoke(arguments.name)
    print(f"{found.name} ({found.peer_id}) is out; a coordinator that runs here tells all within seconds")
    return 0


def show(arguments: argparse.Namespace) -> int:
    """List the passes that were issued."""
    register = _register()
    issued = register.read()
    valid = register.valid(issued)
    for one in issued.passes:
        state = "counts" if one in valid else "revoked" if one.peer_id in issued.revoked else "expired"
        print(f"{one.name}  {state}  until {_day(one.expires)}  {one.peer_id}")
    if not issued.passes:
        print("no pass was issued here")
    return 0


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def _register() -> Register:
    from tasks.contract import UserError

    if importlib.util.find_spec("hivemind") is None:
        raise UserError("passes need hivemind, which has wheels for Linux x86-64 only and is not installed here")
    from tasks.pretraining.collaborative.passes import Register
    from tasks.store import home

    return Register(home() / "passes")
