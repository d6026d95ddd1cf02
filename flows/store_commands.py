"""What the commands do that look after the store, this machine and the local server.

Heavy libraries and the stages are imported inside the functions: the parser imports this module for ``--help``.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from flows.plan import Step
    from tasks.store import Store


def recipes_command(arguments: argparse.Namespace) -> int:
    """List the built-in recipes."""
    from flows.recipe import builtin_recipes, load_recipe

    for name, path in builtin_recipes().items():
        print(f"{name:<14} {load_recipe(name).description}\n{'':<14} {path}")
    return 0


def status_command(arguments: argparse.Namespace) -> int:
    """Show what is running and resumable."""
    from flows.housekeeping import status
    from flows.server_runs import server_lines

    print("\n".join(status(arguments.store)), flush=True)
    print("\n".join(server_lines()))
    return 0


def swarm_command(arguments: argparse.Namespace) -> int:
    """Show how the collaborations of this machine get on."""
    from flows.housekeeping import usable_store
    from flows.swarm_view import swarms
    from tasks.store import home

    print("\n".join(swarms(usable_store(arguments.store).root, home())))
    return 0


def logs_command(arguments: argparse.Namespace) -> int:
    """Print the log of the newest attempt at a stage, or list all attempts."""
    from flows.attempts import attempts
    from flows.housekeeping import usable_store
    from tasks.contract import UserError

    store = usable_store(arguments.store)
    all_found = found = attempts(store, arguments.stage)
    if arguments.failed:
        found = [one for one in found if one.state not in ("published", "running")]
    if all_found and not found:
        print(f"no attempt at {arguments.stage or 'any stage'} has failed")
        return 0
    if not found:
        stages = sorted({one.stage for one in attempts(store)})
        which = f"no attempt at {arguments.stage or 'any stage'} has a log"
        if stages and arguments.stage and arguments.stage not in stages:
            which += f"; there are logs of {', '.join(stages)}"
        raise UserError(which)
    if arguments.list:
        for one in found:
            started = one.started.astimezone().strftime("%Y-%m-%d %H:%M:%S")
            print(f"{started}  {one.state:<11} {one.stage}-{one.fingerprint}  {one.reason or one.path}")
        return 0
    print(found[0].path)
    print(found[0].path.read_text(encoding="utf-8", errors="replace"), end="")
    if found[0].state == "killed":
        print("(ends here: the process was killed, by kill -9, for want of memory, or by a power cut)")
    later = next(one for one in all_found if one.fingerprint == found[0].fingerprint)
    if later.path != found[0].path:
        when = f"{later.started.astimezone():%Y-%m-%d %H:%M}"
        print(f"(the same was tried again since: the attempt that began {when} is {later.state}, {later.path})")
    return 0


def doctor_command(arguments: argparse.Namespace) -> int:
    """Check this machine; status 1 if something is not fit."""
    from flows.doctor import doctor, table

    if arguments.set_ and arguments.engine is None:
        from tasks.contract import UserError

        raise UserError("--set goes with --engine: it changes what the engine is checked for")
    checks = doctor(arguments.store, arguments.engine, arguments.set_)
    print("\n".join(table(checks)))
    return 1 if any(check.state == "fail" for check in checks) else 0


def clean_command(arguments: argparse.Namespace) -> int:
    """Remove the trash, and unfinished work or what was not used for long if asked."""
    from flows.housekeeping import usable_store
    from flows.retention import clean

    store = usable_store(arguments.store)
    print("\n".join(clean(store, work=arguments.work, unused_days=arguments.unused_for, dry_run=arguments.dry_run)))
    return 0


def push_command(arguments: argparse.Namespace) -> int:
    """Copy finished results to another place."""
    from flows.exchange import Place, push

    store, artifacts, _ = _finished(arguments)
    for line in push(store, artifacts, Place.at(arguments.url)):
        print(line, flush=True)
    return 0


def pull_command(arguments: argparse.Namespace) -> int:
    """Copy finished results from another place."""
    from flows.exchange import Place, pull_all, pull_planned

    place = Place.at(arguments.url)
    store, _, plan = _finished(arguments, some=False)
    store.create()
    for line in pull_planned(plan, store, place) if plan else pull_all(store, place):
        print(line, flush=True)
    return 0


def verify_command(arguments: argparse.Namespace) -> int:
    """Compare the hashes of finished results; status 1 if one is damaged."""
    from flows.exchange import verify

    store, artifacts, _ = _finished(arguments)
    sound = True
    for fine, line in verify(store, artifacts):
        print(line, flush=True)
        sound = sound and fine
    if not sound:
        again = f"sahajflow run {arguments.recipe or 'RECIPE'} --verify"
        print(
            f"sahajflow: {again} builds what is damaged again; without --verify it is used as it is", file=sys.stderr
        )
    return 0 if sound else 1


def _finished(
    arguments: argparse.Namespace, *, some: bool = True
) -> tuple[Store, list[Path], Callable[[], list[Step]] | None]:
    """The store, the finished results in it (of the recipe, if one is named), and how to plan that recipe."""
    from flows.housekeeping import usable_store
    from tasks.contract import UserError

    store = usable_store(arguments.store)
    if arguments.recipe is None:
        plan = None
        artifacts = sorted((store.root / "artifacts").glob("*/*"))
    else:
        from flows.execution import Options, prepare

        options = Options(recipe=arguments.recipe, set_=tuple(arguments.set_), store=arguments.store)

        def plan() -> list[Step]:
            return prepare(options).steps

        artifacts = [step.path for step in plan() if step.action == "reuse" and step.path is not None]
    if some and not artifacts:
        raise UserError(f"{store.root}: holds no finished result{f' of {arguments.recipe}' * bool(arguments.recipe)}")
    return store, artifacts, plan


def up_command(arguments: argparse.Namespace) -> int:
    """Start a local server and workers, and deploy the flows; or say what that would change."""
    from pathlib import Path

    from rich.console import Console

    from flows.deployment import up, up_differences
    from flows.reconcile import DEFINITIONS
    from flows.terminal import show_logs
    from tasks.contract import UserError

    if arguments.systemd is not None:
        if arguments.file or arguments.webhook or arguments.notify or arguments.dry_run:
            raise UserError("--systemd writes unit files alone; of the other options it goes with --pool")
        return _write_units(Path(arguments.systemd).expanduser(), arguments.pool)
    file = Path(arguments.file).absolute() if arguments.file else DEFINITIONS
    if arguments.notify == "none" and arguments.webhook:
        raise UserError("--webhook does not go with --notify none; leave one out")
    if arguments.notify not in (None, "none") and not arguments.webhook:
        raise UserError(f"--notify {arguments.notify} needs --webhook URL")
    if arguments.dry_run:
        found = up_differences(file)
        if found is None:
            print("No server runs: up would start one, and deploy everything.")
        for difference in found or []:
            print(difference)
        if found == []:
            print("The server has what the file says.")
        return 0
    show_logs(Console())
    url, gone = up(file, arguments.pool, arguments.webhook, arguments.notify)
    for difference in gone:
        print(f"removed, since the file does not have it: {difference.what}")
    print(f"Prefect's page: {url.removesuffix('/api')}\nIts worker runs what is due; sahajflow down stops both.")
    return 0


def _write_units(folder: Path, pools: list[str]) -> int:
    from flows.deployment import POOL
    from flows.services import SERVER, write_units

    written = write_units(folder.absolute())
    services = [path.name for path in written if path.name == SERVER]
    services += [f"sahajflow-worker@{pool}" for pool in pools or [POOL]]
    print("\n".join(f"wrote {path}" for path in written))
    up = " ".join(["sahajflow up", *(f"--pool {pool}" for pool in pools)])
    begin = f"systemctl --user enable --now {' '.join(services)}"
    print(
        "\n  ".join(["Then:", "sahajflow down", "systemctl --user daemon-reload", begin, up, "loginctl enable-linger"])
    )
    return 0


def down_command(arguments: argparse.Namespace) -> int:
    """Stop the local worker and server."""
    from flows.deployment import down

    for name, was_running in zip(("worker", "server"), down(), strict=True):
        print(f"{name}: {'stopped' if was_running else 'was not running'}")
    return 0
