"""What the commands do that run a recipe or show what came of it, each behind its arguments.

Heavy libraries and the stages are imported inside the functions: the parser imports this module for ``--help``.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from flows.bounds import Bounds
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
    """Run what is missing; prints where the report is, and fails where a score is below a bound that was given."""
    return _run(_options(arguments), tuple(arguments.fail_below), arguments.fail_on_drop)


def _run(options: Options, fail_below: tuple[str, ...] = (), fail_on_drop: bool = False) -> int:
    from flows.bounds import read_bounds
    from flows.execution import blocked, keep_history, prepare
    from tasks.contract import UserError

    prepared = prepare(options)
    bounds = read_bounds(fail_below, fail_on_drop, prepared)
    if reason := blocked(prepared):
        raise UserError(reason)
    standing = {step.node.name: step.path for step in (*prepared.inputs, *prepared.steps) if step.action == "reuse"}
    if prepared.idle:
        print("Nothing to do: everything is there already and reused.")
        _print_end({step.node.name: str(step.path) for step in prepared.steps})
        if evaluation := standing.get("evaluate"):
            keep_history(prepared, [evaluation])
            _judge(bounds, evaluation, prepared)
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
    lost = {step.node.name: set(step.node.inputs.values()) for step in prepared.steps if step.node.name not in paths}
    missing = [name for name, inputs in lost.items() if not inputs & set(lost)]  # what others are missing for
    if missing:
        warnings = [*warnings, f"failed and missing: {', '.join(missing)}; the same command tries again"]
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    made = {outcome.name: outcome.path for outcome in outcomes}
    if evaluation := made.get("evaluate") or standing.get("evaluate"):
        _judge(bounds, evaluation, prepared)
    return 0


def _judge(bounds: Bounds, evaluation: Path, prepared: Prepared) -> None:
    from flows.bounds import judge

    for line in judge(bounds, evaluation, prepared):
        print(f"warning: {line}", file=sys.stderr)


def coordinate_command(arguments: argparse.Namespace) -> int:
    """Start a collaboration that others join: the recipe's chain up to pretrain, with peers from elsewhere."""
    from flows.swarm import coordinating

    options = coordinating(
        _options(arguments), arguments.peers, arguments.keepers, arguments.listen, arguments.announce
    )
    return _run(options)


def join_command(arguments: argparse.Namespace) -> int:
    """Take part in a collaboration until it ends, or until Ctrl-C."""
    from rich.console import Console

    from flows.housekeeping import usable_store
    from flows.swarm import Joining, join
    from flows.terminal import Terminal, show_logs

    store = usable_store(arguments.store)
    asked = Joining(
        arguments.addresses,
        arguments.name,
        arguments.role,
        arguments.stream,
        arguments.bandwidth,
        arguments.micro_batch,
        arguments.pass_file,
    )
    console = Console()
    show_logs(console)
    with Terminal(console, 0).progress("training together") as progress:
        line = join(asked, store.root, arguments.workers, progress)
    print(line)
    return 0


def _print_end(paths: dict[str, str]) -> None:
    if "report" in paths:
        print(f"Report: {paths['report']}/report.html")
    elif paths:
        print(f"Result: {list(paths.values())[-1]}")


def report_command(arguments: argparse.Namespace) -> int:
    """Say where the report is, and render it again beside the store's artifacts; of several runs, compare them."""
    from eval.history import read_history
    from eval.report import render
    from flows.bounds import read_bounds
    from flows.comparison import compare_runs
    from flows.execution import Options, prepare
    from flows.housekeeping import usable_store
    from tasks.contract import UserError

    store = usable_store(arguments.store)
    if len(arguments.runs) > 1:
        if arguments.fail_below or arguments.fail_on_drop:
            raise UserError("--fail-below and --fail-on-drop are for a single RECIPE, not for a comparison")
        return compare_runs(arguments.runs, store, tuple(arguments.set_), arguments.out)
    if arguments.out is not None:
        raise UserError("--out is for the comparison of several runs; a single report lies in the store")
    (recipe,) = arguments.runs
    prepared = prepare(Options(recipe=recipe, set_=tuple(arguments.set_), store=arguments.store))
    bounds = read_bounds(arguments.fail_below, arguments.fail_on_drop, prepared)
    path = prepared.steps[-1].path
    if prepared.steps[-1].action != "reuse" or path is None:
        raise UserError(f"{recipe}: has no up-to-date report; {prepared.options.run_command()} makes it")
    print(f"Report: {path}/report.html", flush=True)  # first: a store that may only be read has it too
    # Beside the artifact, which never changes: templates may have improved since it was published, and there are more
    # evaluations in the history.
    rendered = prepared.store.root / "rendered" / prepared.recipe.name
    rendered.mkdir(parents=True, exist_ok=True)
    history = read_history(prepared.store, prepared.recipe.name)
    markdown, html = render((path / "report.json").read_text(encoding="utf-8"), history)
    (rendered / "report.md").write_text(markdown, encoding="utf-8")
    (rendered / "report.html").write_text(html, encoding="utf-8")
    print(f"Rendered again, with the history: {rendered}/report.html and report.md")
    evaluation = next(step.path for step in prepared.steps if step.node.name == "evaluate")
    assert evaluation is not None
    _judge(bounds, evaluation, prepared)
    return 0


def history_command(arguments: argparse.Namespace) -> int:
    """List every finished evaluation of a recipe."""
    from eval.history import read_history
    from eval.history_view import COLUMNS, history_rows, terminal_rows
    from flows.columns import columns
    from flows.housekeeping import usable_store
    from flows.recipe import load_recipe

    store = usable_store(arguments.store)
    recipe = load_recipe(arguments.recipe, arguments.set_).name
    entries = read_history(store, recipe)
    if arguments.json:
        print(json.dumps(history_rows(entries), indent=1, ensure_ascii=False))
    elif arguments.csv:
        import csv

        table = csv.DictWriter(sys.stdout, list(COLUMNS), lineterminator="\n")
        table.writeheader()
        table.writerows(history_rows(entries))
    elif entries:
        print("\n".join(columns(terminal_rows(entries))))
    else:
        print(f"no finished evaluation of {recipe} in {store.root}")
    return 0


def cost_command(arguments: argparse.Namespace) -> int:
    """Say what a recipe's pretraining costs: as measured in the store, and as published."""
    from flows.cost import cost_text, recipe_cost

    cost = recipe_cost(arguments.recipe, tuple(arguments.set_), arguments.store, arguments.prices)
    print(cost.model_dump_json(indent=1) if arguments.json else cost_text(cost))
    return 0
