"""What the commands do, each behind its arguments: the second half of the command line.

Heavy libraries and the stages are imported inside the functions: the parser imports this module for ``--help``.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flows.execution import Options, Prepared


def _options(arguments: argparse.Namespace) -> Options:
    from flows.execution import Options
    from flows.housekeeping import usable_store

    usable_store(arguments.store)
    names = ("only", "from_", "until", "store", "workers")
    if getattr(arguments, "only", None) and arguments.until:
        from tasks.contract import UserError

        raise UserError("--until does not go with --only; leave one out")
    values = {name: getattr(arguments, name, None) for name in names}
    return Options(
        recipe=arguments.recipe,
        force=tuple(getattr(arguments, "force", ())),
        set_=tuple(arguments.set_),
        verify=getattr(arguments, "verify", False),
        **values,
    )


def plan_command(arguments: argparse.Namespace) -> int:
    """Show what would run, what is reused, and why."""
    from flows.execution import blocked, prepare

    prepared = prepare(_options(arguments))
    if arguments.json:
        print(json.dumps([step.as_json() for step in prepared.steps], indent=1, ensure_ascii=False))
    else:
        _print_plan(prepared)
    if reason := blocked(prepared):
        print(f"sahajflow: {reason}", file=sys.stderr)
    return 0


def _print_plan(prepared: Prepared) -> None:
    for step in prepared.steps:
        print(f"{step.action:<6} {step.node.name:<36} {step.reason}")
    counts = {action: sum(step.action == action for step in prepared.steps) for action in ("run", "reuse", "wait")}
    print(f"\n{counts['run']} to run, {counts['reuse']} reused, {counts['wait']} wait; store {prepared.store.root}")


def run_command(arguments: argparse.Namespace) -> int:
    """Run what is missing; prints where the report is."""
    return _run(_options(arguments))


def _run(options: Options) -> int:
    from flows.execution import blocked, prepare
    from tasks.contract import UserError

    prepared = prepare(options)
    if reason := blocked(prepared):
        raise UserError(reason)
    if prepared.idle:
        print("Nothing to do: everything is there already and reused.")
        _print_end({step.node.name: str(step.path) for step in prepared.steps})
        return 0
    prepared.store.create()  # what cannot be written is said before Prefect starts anything
    from rich.console import Console

    from flows.prefect_runner import run_with_prefect
    from flows.terminal import Terminal, show_logs

    console = Console()
    show_logs(console)
    terminal = Terminal(console, sum(step.node.stage.name == "seed-run" for step in prepared.steps))
    outcomes, warnings = run_with_prefect(options, terminal.run_node)
    paths = {outcome.name: str(outcome.path) for outcome in outcomes}
    _print_end(paths)
    missing = [step.node.name for step in prepared.steps if step.node.name not in paths]
    if missing:
        warnings = [*warnings, f"failed and missing: {', '.join(missing)}; the same command tries again"]
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return 0


def coordinate_command(arguments: argparse.Namespace) -> int:
    """Start a collaboration that others join: the recipe's chain up to pretrain, with peers from elsewhere."""
    from flows.swarm import coordinating

    options = coordinating(_options(arguments), arguments.peers, arguments.listen, arguments.announce)
    return _run(options)


def join_command(arguments: argparse.Namespace) -> int:
    """Take part in a collaboration until it ends, or until Ctrl-C."""
    from rich.console import Console

    from flows.housekeeping import usable_store
    from flows.swarm import join
    from flows.terminal import Terminal, show_logs

    store = usable_store(arguments.store)
    console = Console()
    show_logs(console)
    with Terminal(console, 0).progress("training together") as progress:
        line = join(arguments.addresses, arguments.name, store.root, arguments.workers, progress)
    print(line)
    return 0


def _print_end(paths: dict[str, str]) -> None:
    if "report" in paths:
        print(f"Report: {paths['report']}/report.html")
    elif paths:
        print(f"Result: {list(paths.values())[-1]}")


def report_command(arguments: argparse.Namespace) -> int:
    """Say where the report is, and render it again beside the store's artifacts."""
    from eval.report import render
    from flows.execution import Options, prepare
    from flows.housekeeping import usable_store
    from tasks.contract import UserError

    usable_store(arguments.store)
    prepared = prepare(Options(recipe=arguments.recipe, set_=tuple(arguments.set_), store=arguments.store))
    path = prepared.steps[-1].path
    if prepared.steps[-1].action != "reuse" or path is None:
        raise UserError(f"{arguments.recipe}: has no up-to-date report; sahajflow run {arguments.recipe} makes it")
    # Beside the artifact, which never changes: templates may have improved since it was published.
    rendered = prepared.store.root / "rendered" / prepared.recipe.name
    rendered.mkdir(parents=True, exist_ok=True)
    markdown, html = render((path / "report.json").read_text(encoding="utf-8"))
    (rendered / "report.md").write_text(markdown, encoding="utf-8")
    (rendered / "report.html").write_text(html, encoding="utf-8")
    print(f"Report: {path}/report.html\nRendered again: {rendered}/report.html and report.md")
    return 0


def recipes_command(arguments: argparse.Namespace) -> int:
    """List the built-in recipes."""
    from flows.recipe import builtin_recipes, load_recipe

    for name, path in builtin_recipes().items():
        print(f"{name:<14} {load_recipe(name).description}\n{'':<14} {path}")
    return 0


def status_command(arguments: argparse.Namespace) -> int:
    """Show what is running and resumable."""
    from flows.housekeeping import status

    print("\n".join(status(arguments.store)))
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
    """Remove the trash, and unfinished work if asked."""
    from flows.housekeeping import clean

    print("\n".join(clean(arguments.store, work=arguments.work, dry_run=arguments.dry_run)))
    return 0


def up_command(arguments: argparse.Namespace) -> int:
    """Start a local server and worker, and deploy the flows."""
    from rich.console import Console

    from flows.deployment import up
    from flows.terminal import show_logs

    show_logs(Console())
    url = up()
    print(f"Prefect's page: {url.removesuffix('/api')}\nIts worker runs what is due; sahajflow down stops both.")
    return 0


def down_command(arguments: argparse.Namespace) -> int:
    """Stop the local worker and server."""
    from flows.deployment import down

    for name, was_running in zip(("worker", "server"), down(), strict=True):
        print(f"{name}: {'stopped' if was_running else 'was not running'}")
    return 0
