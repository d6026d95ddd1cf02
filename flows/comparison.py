"""`sahajflow report A B`: finds the evaluations, compares them, and writes and prints what came out."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flows.columns import columns
from flows.execution import Options, prepare
from flows.recipe import builtin_recipes
from tasks.contract import UserError
from tasks.identity import canonical
from tasks.store import Store

if TYPE_CHECKING:
    from eval.compared_runs import Run
    from eval.comparison_schema import RunComparison


def compare_runs(places: Sequence[str], store: Store, changes: tuple[str, ...], out: str | None) -> int:
    """Compare the evaluations at the places and say where the comparison is; returns the exit status.

    Args:
        places: recipes, whose evaluations must be in the store, or folders of artifacts of evaluate or report.
        store: of the recipes, and of the comparison unless ``out`` is given.
        changes: ``key=value``, applied to every recipe.
        out: folder for ``comparison.json``, ``comparison.md`` and ``comparison.html``.

    Raises:
        UserError: a place holds no evaluation, or nothing of the runs can be compared.
        StageError: the predictions of an evaluation are damaged.
    """
    from eval.comparing import LETTERS, compare
    from eval.comparison_view import terminal_rows

    if len(places) > len(LETTERS):
        raise UserError(f"{len(places)} runs: at most {len(LETTERS)} can be compared at once")
    comparison = compare([_run(place, store, changes, letter) for place, letter in zip(places, LETTERS, strict=False)])
    folder = _written(comparison, _folder(comparison, store, out))
    for run, place in zip(comparison.runs, places, strict=True):
        print(f"{run.letter}: {run.name}, evaluated {run.finished:%Y-%m-%d %H:%M} UTC  ({place})")
    print("\n" + "\n".join(columns(terminal_rows(comparison))))
    for task in comparison.tasks:
        print("".join(f"\n{one.sentence}" for one in task.result.comparisons))
    print(f"\nComparison: {folder}/comparison.html, comparison.md and comparison.json")
    for task in comparison.tasks:
        for caution in task.cautions:
            print(f"warning: {task.result.task}: {caution}", file=sys.stderr)
    for one in comparison.refused:
        print(f"warning: not compared: {one.task} of {one.letter}: {one.reason}", file=sys.stderr)
    return 0


def _run(place: str, store: Store, changes: tuple[str, ...], letter: str) -> Run:
    from eval.compared_runs import evaluation_in, load_run

    folder = Path(place).expanduser()
    if place not in builtin_recipes() and folder.is_dir():
        return load_run(evaluation_in(folder, store.root), letter)
    prepared = prepare(Options(recipe=place, set_=changes, store=str(store.root)))
    step = next(step for step in prepared.steps if step.node.name == "evaluate")
    if step.action != "reuse" or step.path is None:
        command = prepared.options.run_command()
        raise UserError(f"{place}: has no up-to-date evaluation; {command} --until evaluate makes it")
    return load_run(step.path, letter, prepared.recipe.name)


def _folder(comparison: RunComparison, store: Store, out: str | None) -> Path:
    if out is not None:
        return Path(out).expanduser().absolute()
    store.create()
    content = hashlib.sha256(canonical([run.fingerprint + run.digest for run in comparison.runs])).hexdigest()
    names = "-".join(run.name for run in comparison.runs if run.name.replace("-", "").isalnum())
    return store.root / "rendered" / "compared" / f"{names[:100]}-{content[:8]}"


def _written(comparison: RunComparison, folder: Path) -> Path:
    from eval.rendering import comparison_to_html, comparison_to_markdown

    texts = {
        "comparison.json": comparison.model_dump_json(indent=1) + "\n",
        "comparison.md": comparison_to_markdown(comparison),
        "comparison.html": comparison_to_html(comparison),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8", newline="\n")
    except (FileExistsError, NotADirectoryError):
        raise UserError(f"{folder}: is a file, or lies below one; give --out a folder") from None
    return folder
