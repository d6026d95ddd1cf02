"""A notebook for volunteers on Colab or Kaggle: installs, joins, and says what to do; nothing has to be typed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks import durable

VERSIONS = ("hivemind", "scipy")
"""Libraries that have to be the swarm's; the others come as sahajflow wants them."""


def notebook(addresses: Sequence[str], package: str | None, libraries: Mapping[str, str]) -> dict[str, Any]:
    """A notebook in the format nbformat 4.5.

    Args:
        addresses: where to join.
        package: what pip installs to have sahajflow; None: the reader has to ask for it.
        libraries: versions of the swarm.
    """
    exact = " ".join(f'"{name}=={libraries[name]}"' for name in VERSIONS if name in libraries)
    install = [
        f"PACKAGE = {json.dumps(package or '')}  # where sahajflow is: a name, a wheel's address, or git+https://...",
        'assert PACKAGE, "ask the organiser where sahajflow is to be had, and put it between the quotes above"',
        f'%pip install --quiet "$PACKAGE" {exact}',
    ]
    join = [
        'NAME = ""  # how you want to be called in the ledger; empty: like this machine',
        'CALLED = f"--name {NAME}" if NAME else ""',
        # nobody can connect to a notebook's machine
        f"!sahajflow join {' '.join(addresses)} --role client $CALLED",
    ]
    cells = [
        _cell(
            "markdown",
            "welcome",
            [
                "# Train a language model together",
                "",
                "This machine computes a part of a model that many train together. Choose a GPU (Colab: Runtime, "
                "Change runtime type; Kaggle: Settings, Accelerator), then run the two cells below, one after the "
                "other. The second one shows step, loss, peers and your own share until the training ends. Stop it "
                "whenever you like: the others go on, and running it again comes back.",
                "",
                "Keep to the rules of the service: one session of one account at a time.",
            ],
        ),
        _cell("code", "install", install),
        _cell("code", "join", join),
    ]
    return {
        "cells": cells,
        "metadata": {
            "accelerator": "GPU",
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def write(path: Path, addresses: Sequence[str], package: str | None, libraries: Mapping[str, str]) -> None:
    """Write the notebook; arguments as :func:`notebook`."""
    durable.write_json(path, notebook(addresses, package, libraries))


def _cell(kind: str, name: str, lines: Sequence[str]) -> dict[str, Any]:
    source = [f"{line}\n" for line in lines[:-1]] + [lines[-1]]
    cell: dict[str, Any] = {"cell_type": kind, "id": name, "metadata": {}, "source": source}
    return cell if kind == "markdown" else {**cell, "execution_count": None, "outputs": []}
