"""What `sahajflow export` does, behind its arguments: the list first, then the folder or, after a yes, the hub.

Heavy libraries are imported inside the functions: the parser imports this module for ``--help``.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flows.export import Export


def export(arguments: argparse.Namespace) -> int:
    """Write model, tokenizer and card to a folder, or upload them to the hub after saying what would go there."""
    from flows.execution import Options, prepare
    from flows.export import collect, write_folder
    from flows.housekeeping import usable_store
    from tasks.contract import UserError

    if arguments.to is not None and (arguments.private or arguments.yes):
        raise UserError("--private and --yes go with --hub, not with --to; leave them out")
    if arguments.hub is not None:
        from flows.hub_upload import check_name

        check_name(arguments.hub)
    usable_store(arguments.store)
    prepared = prepare(Options(recipe=arguments.recipe, set_=tuple(arguments.set_), store=arguments.store))
    found = collect(prepared, arguments.hub, page=arguments.report)
    print("\n".join(found.listing()))
    if arguments.hub is not None:
        return _upload(arguments, found, prepared.recipe.name)
    written = write_folder(found, arguments.to, prepared.store.root, force=arguments.replace)
    if written:
        print(f"Wrote {written} of {found.total} to {arguments.to}")
    else:
        print(f"Nothing to do: {arguments.to} holds all of it already.")
    return 0


def _upload(arguments: argparse.Namespace, found: Export, recipe: str) -> int:
    from importlib.metadata import version

    from flows.hub_upload import address, upload

    where = address(arguments.hub)
    if not arguments.yes:
        seen = "private" if arguments.private else "public, unless it exists and is private"
        print(f"\nThis would upload {found.total} to {where} ({seen}).")
        if not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout)):
            print("Nothing was uploaded; the same command with --yes does it.")
            return 0
        if not _agreed():
            print("Nothing was uploaded.")
            return 0
    message = f"Export {recipe} (sahajflow {version('sahajflow')})"
    commit = upload(found, arguments.hub, message, private=arguments.private, force=arguments.replace)
    print(f"Uploaded to {where}: {commit}" if commit else f"Nothing to do: {where} holds all of it already.")
    return 0


def _agreed() -> bool:
    try:
        return input("Type yes to upload: ").strip().lower() == "yes"
    except EOFError:
        print()
        return False
