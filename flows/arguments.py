"""The arguments of every command; what they do is in ``commands.py``, ``export_command.py``,
``pass_command.py``, ``store_commands.py``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from flows import commands, export_command, pass_command, store_commands
from flows.argument_types import Parser, Version, bandwidth, count, days, positive
from tasks.pretraining.collaborative.roles import ROLES

STAGES = ("corpus", "tokenizer", "pack", "pretrain", "evaluate", "report")

_Command = Callable[..., argparse.ArgumentParser]


def parser() -> argparse.ArgumentParser:
    """The parser of all commands; each sets ``command`` to the function that carries it out."""
    parser = Parser(
        prog="sahajflow",
        description="From raw text to a pretrained language model with an honest score.",
        epilog="RECIPE is a built-in name (see: sahajflow recipes) or the path of a YAML file. Relative paths in a "
        "file start at its folder, those of a built-in recipe at the current folder.",
    )
    parser.add_argument("--version", action=Version, nargs=0, help="print the version and exit")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, function: Any, help: str, description: str = "") -> argparse.ArgumentParser:
        sub = subparsers.add_parser(name, help=help, description=description or help[0].upper() + help[1:] + ".")
        sub.set_defaults(command=function)
        return sub

    _add_recipe_commands(command)
    _add_store_commands(command)
    return parser


def _add_recipe_commands(command: _Command) -> None:
    run = command("run", commands.run_command, "run what is missing of a recipe's chain")
    _add_selection(run)
    _add_bounds(run)
    run.add_argument("--workers", type=positive, metavar="N", help="threads and processes (default: the cores)")
    plan = command("plan", commands.plan_command, "show what would run, what is reused, and why")
    _add_selection(plan)
    plan.add_argument("--json", action="store_true", help="a list of {stage, action, reason, fingerprint, path}")
    report = command(
        "report",
        commands.report_command,
        "say where the report is, and render it again; of several runs, compare them",
        "With one RECIPE: say where its report is, and render it again from its stored JSON. With several, or folders "
        "of evaluations or reports that come from elsewhere: put them side by side, with paired tests.",
    )
    report.add_argument(
        "runs", nargs="+", metavar="RECIPE", help="to compare: also an evaluation's or report's folder"
    )
    report.add_argument(
        "--out", metavar="DIR", help="where the comparison goes (default: rendered/compared in the store)"
    )
    _add_bounds(report)
    _add_settings(report)
    cost = command(
        "cost",
        commands.cost_command,
        "say what a pretraining costs: measured here, and as published",
        "Say what a recipe's pretraining costs: this run and the full schedule, by the measured speed and the prices "
        "of machines of the same kind; and, apart from it, what others published.",
    )
    cost.add_argument("recipe", metavar="RECIPE")
    cost.add_argument("--json", action="store_true", help="all figures, without the sentences")
    cost.add_argument(
        "--prices", metavar="FILE", help="rows of your own beside the built-in ones (as cost.prices of the recipe)"
    )
    _add_settings(cost)
    history = command(
        "history",
        commands.history_command,
        "list every finished evaluation of a recipe, with what changed",
    )
    history.add_argument("recipe", metavar="RECIPE")
    form = history.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="a list of rows; scores are fractions")
    form.add_argument("--csv", action="store_true", help="the same rows as CSV")
    _add_settings(history)
    export = command(
        "export",
        export_command.export,
        "write model, tokenizer and model card to a folder, or upload them to the Hugging Face hub",
        "Write model, tokenizer and model card of a finished recipe to a folder, or upload them to the Hugging Face "
        "hub. The list of files with their digests comes first; nothing is uploaded without --yes, or a yes at the "
        "question. The hub's token comes from HF_TOKEN or from: hf auth login.",
    )
    export.add_argument("recipe", metavar="RECIPE")
    where = export.add_mutually_exclusive_group(required=True)
    where.add_argument("--to", metavar="FOLDER", help="write them here")
    where.add_argument("--hub", metavar="OWNER/NAME", help="upload them to this repository; it is made if needed")
    export.add_argument("--report", action="store_true", help="also report.html")
    export.add_argument("--private", action="store_true", help="make the repository a private one")
    export.add_argument("--yes", action="store_true", help="upload without a question")
    export.add_argument("--force", dest="replace", action="store_true", help="replace files that are there and differ")
    _add_settings(export)
    coordinate = command(
        "coordinate",
        commands.coordinate_command,
        "start a collaboration that others join",
        "Start a collaboration that others join: runs the recipe's chain up to pretrain, trains with the peers that "
        "join, and publishes the result where `run` finds it. The same command goes on after a restart.",
    )
    coordinate.add_argument("recipe", metavar="RECIPE")
    _add_settings(coordinate)
    coordinate.add_argument(
        "--peers", type=count, default=0, metavar="N", help="peers to start on this machine (default: 0)"
    )
    coordinate.add_argument(
        "--keepers",
        type=count,
        default=1,
        metavar="N",
        help="keepers to start on this machine, which have the newest state when all who train have left (default: 1)",
    )
    coordinate.add_argument(
        "--listen",
        action="append",
        default=[],
        metavar="MULTIADDR",
        help="where to listen (default: /ip4/0.0.0.0/tcp/31337); can be repeated",
    )
    coordinate.add_argument(
        "--announce",
        action="append",
        default=[],
        metavar="MULTIADDR",
        help="the address that others reach this machine at, if it is another one; can be repeated",
    )
    coordinate.add_argument("--workers", type=positive, metavar="N", help="threads of the local peers")
    join = command(
        "join",
        commands.join_command,
        "take part in a collaboration",
        "Take part in a collaboration until it ends or Ctrl-C. What is trained, the tokenizer and the packed corpus "
        "come from the coordinator; this machine is checked first, with a remedy for each finding.",
    )
    join.add_argument(
        "addresses",
        nargs="+",
        metavar="MULTIADDR",
        help="the line that `coordinate` prints; several are tried in turn",
    )
    join.add_argument(
        "--role",
        choices=ROLES,
        help="client: computes, but nobody can connect to it; auxiliary: only averages for others; keeper: has the "
        "newest state for those who come later (default: peer, or client where nobody can connect to this machine)",
    )
    join.add_argument(
        "--stream", action="store_true", help="read the corpus row by row from the coordinator; needs no disk for it"
    )
    join.add_argument(
        "--bandwidth",
        type=bandwidth,
        metavar="MBPS",
        help="in Mb/s, for sharing out the averaging (default: measured)",
    )
    join.add_argument(
        "--micro-batch",
        type=positive,
        metavar="N",
        help="sequences computed at a time (default: the fastest, measured)",
    )
    join.add_argument("--name", help="how this peer is called in the ledger (default: the host's name)")
    join.add_argument("--workers", type=positive, metavar="N", help="threads (default: the cores)")
    join.add_argument("--pass", dest="pass_file", metavar="FILE", help="from the organiser, if the collaboration asks")
    _add_store(join)
    _add_passes(
        command(
            "pass",
            pass_command.show,
            "issue, revoke and list the passes of volunteers",
            "Issue, revoke and list the passes of volunteers, for collaborations with "
            "pretraining.collaborative.access: passes. The register is in SAHAJFLOW_HOME; a coordinator with the same "
            "one heeds it within seconds.",
        )
    )


def _add_passes(passes: argparse.ArgumentParser) -> None:
    actions = passes.add_subparsers(metavar="ACTION", required=True)
    issue = actions.add_parser("issue", help="write a pass that its holder joins with: sahajflow join --pass FILE")
    issue.add_argument("name", metavar="NAME", help="of the volunteer")
    issue.add_argument("--days", type=days, default=30.0, metavar="N", help="it counts so long (default: 30)")
    issue.add_argument("--output", metavar="FILE", help="where to write it (default: NAME.pass)")
    issue.set_defaults(command=pass_command.issue)
    revoke = actions.add_parser("revoke", help="let a volunteer's pass count no longer")
    revoke.add_argument("name", metavar="NAME")
    revoke.set_defaults(command=pass_command.revoke)
    actions.add_parser("list", help="the passes that were issued here").set_defaults(command=pass_command.show)


def _add_store_commands(command: _Command) -> None:
    command("recipes", store_commands.recipes_command, "list the built-in recipes")
    _add_store(command("status", store_commands.status_command, "show what is running and what can be resumed"))
    _add_store(command("swarm", store_commands.swarm_command, "show the collaborations of this machine, peer by peer"))
    doctor = command("doctor", store_commands.doctor_command, "check this machine, with a remedy for each finding")
    doctor.add_argument("--engine", choices=("gaudi",), help="also what this engine needs, for the recipe bert-gaudi")
    _add_settings(doctor)
    for name, function, help in (
        ("push", store_commands.push_command, "copy finished results to another place, such as s3://bucket/folder"),
        ("pull", store_commands.pull_command, "copy finished results from another place into the store"),
    ):
        exchange = command(name, function, help)
        exchange.add_argument("url", metavar="URL", help="a folder, or any address that fsspec knows")
        exchange.add_argument("recipe", nargs="?", metavar="RECIPE", help="its results alone (default: all)")
        _add_settings(exchange)
    verify = command(
        "verify", store_commands.verify_command, "compare the hashes of finished results with their records"
    )
    verify.add_argument("recipe", nargs="?", metavar="RECIPE", help="its results alone (default: all)")
    _add_settings(verify)
    logs = command(
        "logs",
        store_commands.logs_command,
        "print the log of the newest attempt at a stage",
        "Print the log of the newest attempt at a stage, or of the newest that failed. Every attempt has a log file "
        "of its own in the store, readable without Prefect.",
    )
    logs.add_argument("stage", nargs="?", metavar="STAGE", help="corpus, seed-run, ... (default: any)")
    logs.add_argument("--failed", action="store_true", help="failed, refused, interrupted and killed attempts alone")
    logs.add_argument("--list", action="store_true", help="a line for each attempt, the newest first")
    _add_store(logs)
    clean = command(
        "clean",
        store_commands.clean_command,
        "remove the trash; with --work, unfinished work; with --unused-for, what was not used for long",
    )
    _add_store(clean)
    clean.add_argument("--work", action="store_true", help="also unfinished work that nobody holds")
    clean.add_argument(
        "--unused-for",
        type=days,
        metavar="DAYS",
        help="also results, unfinished work and logs that no run used for so long; what something newer, running or "
        "unfinished refers to stays",
    )
    clean.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    up = command("up", store_commands.up_command, "start a local Prefect server and worker, and deploy the flows")
    up.add_argument("--file", metavar="FILE", help="your own copy of prefect.yaml (default: the one of sahajflow)")
    up.add_argument(
        "--pool",
        action="append",
        default=[],
        metavar="POOL",
        help="work pool that this machine serves, such as gpu or gaudi (default: cpu); can be repeated",
    )
    up.add_argument("--webhook", metavar="URL", help="where the server tells how runs ended, as Slack takes it")
    up.add_argument(
        "--notify", choices=("all", "end", "failure", "none"), help="of which runs (default with --webhook: failure)"
    )
    up.add_argument("--dry-run", action="store_true", help="only say what would change on the server")
    up.add_argument(
        "--systemd", metavar="DIR", help="only write unit files of server and worker there: ~/.config/systemd/user"
    )
    command("down", store_commands.down_command, "stop the local Prefect server and worker")


def _add_selection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", metavar="RECIPE")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--only", choices=STAGES, metavar="STAGE", help=f"one of {', '.join(STAGES)}")
    which.add_argument("--from", dest="from_", choices=STAGES, metavar="STAGE", help="this stage and what follows")
    parser.add_argument("--until", choices=STAGES, metavar="STAGE", help="up to this stage")
    parser.add_argument(
        "--force",
        action="append",
        default=[],
        choices=STAGES,
        metavar="STAGE",
        help="run it again from the beginning, or go on with a forced run that was interrupted; can be repeated",
    )
    _add_settings(parser)
    parser.add_argument("--verify", action="store_true", help="compare the hashes of all files, not only their sizes")


def _add_bounds(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--fail-below",
        action="append",
        default=[],
        metavar="[TASK=]VALUE",
        help="exit status 1 if the pretrained model's mean over seeds is below it: 0.72 or 72%%; can be repeated",
    )
    parser.add_argument(
        "--fail-on-drop",
        action="store_true",
        help="exit status 1 if that mean fell beyond the interval since the evaluation before (docs/evaluation.md)",
    )


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        dest="set_",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a setting, e.g. evaluation.seeds=5; can be repeated; relative paths start at the recipe file's "
        "folder, with a built-in recipe at the current one",
    )
    _add_store(parser)


def _add_store(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store", metavar="DIR", help="where results live (default: store in $SAHAJFLOW_HOME)")
