"""The report without what concerns nobody outside: host names, folders of machines, addresses, names of peers.

What is published is made of this report only, so nothing has to be remembered where a text is written. Fields that are
known to hold such things are emptied; every other text is searched for them, since a failure told in one line may name
any file.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any

from eval.report_schema import Report

HIDDEN_HOST = "[host]"
HIDDEN_ADDRESS = "[address]"

_ADDRESSES = re.compile(
    r"/(?:ip4|ip6|dns|dns4|dns6|dnsaddr|p2p|unix)/[^\s\"'`,;]+"  # multiaddrs
    r"|\b(?:tcp|tls|ucx|inproc|unix)://[^\s\"'`,;]+"  # schedulers
    r"|(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])"
)
_BEGIN = r"(?<![\w:/.\]})>*?-])(?:file://)?"
"""Where a path may begin: not within a web address, nor at the second part of a/b."""

_PART = r"[^\s/\"'`,;:()<>|]+"
_PATHS = re.compile(rf"{_BEGIN}(?:~\w*)?/(?:{_PART}/)+(?:{_PART})?")
"""Absolute paths of two parts or more within a text."""


class Private:
    """What this machine must not tell, and how it is taken out of texts.

    Args:
        hosts: names of machines.
        folders: absolute paths of folders, such as the home folder and the store.
        known: texts that are published anyhow: a host's name in them is an ordinary word here.
    """

    def __init__(self, hosts: Iterable[str], folders: Iterable[str], known: Iterable[str] = ()):
        told = "\n".join(known)
        names = {name for host in hosts for name in (host, host.partition(".")[0]) if name}
        self._hosts = [_word(name) for name in sorted(names, key=len, reverse=True) if not _word(name).search(told)]
        absolute = {folder for folder in folders if len(PurePosixPath(folder).parts) > 1}
        self._folders = [
            re.compile(rf"{_BEGIN}({re.escape(folder)})(?![\w-])/?")
            for folder in sorted(absolute, key=len, reverse=True)
        ]

    def removed(self, text: str) -> str:
        """The text with addresses and hosts hidden, and of absolute paths only what they lead to."""
        if text.startswith(("/", "~/")) and not _ADDRESSES.match(text) and "\n" not in text:
            return PurePosixPath(text).name or HIDDEN_ADDRESS  # a path, with whatever characters
        text = _ADDRESSES.sub(HIDDEN_ADDRESS, text)
        for folder in self._folders:
            text = folder.sub("", text)
        text = _PATHS.sub(lambda match: PurePosixPath(match.group()).name, text)
        if " " in text:  # a sentence; names of stages and the like stay
            for host in self._hosts:
                text = host.sub(HIDDEN_HOST, text)
        return text

    def found(self, text: str) -> str | None:
        """The first folder or multiaddr that a text to be published holds; None if there is none."""
        for folder in self._folders:
            if match := folder.search(text):
                return match.group(1)
        address = re.search(r"/(?:ip4|ip6|dns4|dns6|dnsaddr)/[\w.:-]+/(?:tcp|udp)/\d+", text)
        return address.group() if address else None


def private_facts(report: Report, folders: Iterable[str]) -> Private:
    """What has to be taken out of this report: the hosts that it names, this one, and the folders given."""
    hosts = {place.host for place in report.environments} | {socket.gethostname()}
    known = [report.name, report.description, json.dumps(report.recipe, ensure_ascii=False)]
    return Private(hosts, [*folders, *_folders_in(report.recipe)], known)


def public_report(report: Report, private: Private, *, peer_names: bool = False) -> Report:
    """The report as anybody may see it.

    Args:
        report: the whole one.
        private: what has to be taken out.
        peer_names: keep what peers called themselves; else they are numbered, and their keys' digests go too.
    """
    values = report.model_dump(mode="json")
    for place in values["environments"]:
        place["host"] = ""
    if values["cost"]:
        _hide_machines(values["cost"])
    for settings in (values["recipe"].get("pretraining", {}).get("collaborative") or {},):
        for key in ("listen", "announce"):
            settings.pop(key, None)
    if values["collaboration"] and not peer_names:
        peers, left = values["collaboration"]["peers"], values["collaboration"]["final"]["peers"]
        numbered = {peer["name"]: f"peer {number}" for number, peer in enumerate(peers, start=1)}
        values["collaboration"]["final"]["peers"] = [numbered.get(name, "another peer") for name in left]
        for number, peer in enumerate(peers, start=1):
            peer |= {"name": f"peer {number}", "peer": ""}
    return Report.model_validate(_walked(values, private))


def _hide_machines(cost: dict[str, Any]) -> None:
    """The user's rows of prices may be called as the machine is, and their source is nobody's business."""
    replaced = {row["instance"] for row in cost["replaced_prices"]}
    own = [row for row in cost["own_prices"] if row["instance"] not in replaced]
    numbered = {row["instance"]: f"own machine {number}" for number, row in enumerate(own, start=1)}
    for run in cost["measured"]:
        run["machine"]["host"] = ""
        for price in run["prices"]:
            price["instance"] = numbered.get(price["instance"], price["instance"])
    used = [run["price"] for run in cost["published"] if run["price"] in cost["own_prices"]]
    for row in [*used, *cost["own_prices"]]:
        row |= {"instance": numbered.get(row["instance"], row["instance"]), "source": "the user's own price"}


def _walked(value: Any, private: Private) -> Any:
    if isinstance(value, str):
        return private.removed(value)
    if isinstance(value, list):
        return [_walked(item, private) for item in value]
    if isinstance(value, dict):
        # Versions of packages may have four numbers, as addresses have.
        return {key: item if key == "packages" else _walked(item, private) for key, item in value.items()}
    return value


def _folders_in(value: Any) -> list[str]:
    """The folders of all absolute paths among the values of a recipe."""
    if isinstance(value, str) and value.startswith("/") and not _ADDRESSES.match(value):
        return [str(PurePosixPath(value).parent)]
    if isinstance(value, dict):
        value = list(value.values())
    return [folder for item in value for folder in _folders_in(item)] if isinstance(value, list) else []


def _word(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", re.IGNORECASE)
