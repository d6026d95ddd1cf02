"""Two evaluations or more, side by side: is the same model better in one than in another, or could it be chance?

Compared are models of the same name on tasks of the same name, by the tests of :mod:`eval.summary` on the predictions
that the evaluations keep, with Holm's correction over all comparisons together. Other data, labels or metrics are
refused task by task: such scores say nothing about each other. Other seeds or fine-tuning settings are compared and
said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from eval.compared_runs import Run
from eval.comparison_schema import ComparedTask, Difference, Refused, RunComparison
from eval.results import Comparison, ModelResult, TaskResult
from eval.summary import Measured, Pair, conclude, task_summary
from tasks.contract import UserError
from tasks.identity import differences

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def compare(runs: Sequence[Run]) -> RunComparison:
    """Every two of the runs on every task that they have in common.

    Raises:
        UserError: there is no task and model that two of them can be compared on.
        StageError: the predictions of a run cannot be read, or do not have the scores that it states.
    """
    prepared: list[tuple[ComparedTask, tuple[Pair, ...]]] = []
    refused: list[Refused] = []
    for name in dict.fromkeys(task.task for run in runs for task in run.results.tasks):
        groups = _alike(name, runs)
        largest = max(groups, key=len)
        for group in groups:
            made = _compared(name, group) if len(group) > 1 else None
            if made is not None:
                prepared.append(made)
            if group is not largest or len(group) == 1:
                refused += [
                    Refused(task=name, letter=run.facts.letter, reason=_why(name, run, largest)) for run in group
                ]
        lacking = [run for run in runs if run.task(name) is None]
        refused += [Refused(task=name, letter=run.facts.letter, reason="not among its tasks") for run in lacking]
    pairs = [pair for _, of_task in prepared for pair in of_task]
    if not pairs:
        reasons = "; ".join(f"{one.task} of {one.letter}: {one.reason}" for one in refused)
        raise UserError(f"nothing to compare: {reasons or 'no model of the same name in two runs'}")
    concluded = iter(conclude(pairs))
    tasks = tuple(
        task.model_copy(
            update={"result": task.result.model_copy(update={"comparisons": tuple(next(concluded) for _ in of_task)})}
        )
        for task, of_task in prepared
    )
    made_comparisons = [one for task in tasks for one in task.result.comparisons]
    return RunComparison(
        verdict=_verdict(tasks, made_comparisons),
        runs=tuple(run.facts for run in runs),
        tasks=tasks,
        refused=tuple(refused),
    )


def _alike(name: str, runs: Sequence[Run]) -> list[list[Run]]:
    """The runs that have the task, in groups that measured the same thing."""
    groups: dict[object, list[Run]] = {}
    for run in runs:
        task = run.task(name)
        if task is not None:
            groups.setdefault((task.kind, task.metric, task.sha256, frozenset(task.labels)), []).append(run)
    return list(groups.values())


def _why(name: str, run: Run, others: Sequence[Run]) -> str:
    """What keeps a run's task from being compared with that of the others."""
    other = others[0]
    ours, theirs = run.task(name), other.task(name)
    assert ours is not None
    assert theirs is not None
    if run is other:
        return "no other run measured the same on it"
    letter = other.facts.letter
    found = []
    if (ours.kind, ours.metric) != (theirs.kind, theirs.metric):
        found.append(f"its metric is {ours.metric}, that of {letter} {theirs.metric}")
    if set(ours.labels) != set(theirs.labels):
        found.append(f"its labels are {', '.join(ours.labels)}, those of {letter} {', '.join(theirs.labels)}")
    if ours.sha256 != theirs.sha256:
        found.append(
            f"its data are others than those of {letter} (digest {ours.sha256[:12]}, not {theirs.sha256[:12]})"
        )
    return "; ".join(found)


def _compared(name: str, runs: Sequence[Run]) -> tuple[ComparedTask, tuple[Pair, ...]]:
    """One task of runs that measured the same, its comparisons still to be added, and their pairs."""
    found = {run.facts.letter: run.task(name) for run in runs}
    results = {letter: task for letter, task in found.items() if task is not None}
    first = results[runs[0].facts.letter]
    models: list[ModelResult] = []
    pairs: list[Pair] = []
    cautions = [warning for task in results.values() for warning in task.warnings]
    changed = tuple(_fine_tuning_differences(results))
    if changed:
        cautions.append(
            "The fine-tuning is not the same, so a difference between the runs is not the models' alone: "
            + "; ".join(f"{one.setting} is {_values(one)}" for one in changed)
            + "."
        )
    for model in dict.fromkeys(one.model for task in results.values() for one in task.models):
        measured = [made for run in runs if (made := _measured(name, model, run)) is not None]
        if len(measured) == 1:
            (alone,) = measured
            cautions.append(f"{alone.model} has no counterpart in another run, so it is shown and not compared.")
        else:
            pairs += task_summary(name, first.metric, measured)[1]
            cautions += _seed_cautions(measured)
        for letter, task in results.items():
            models += [
                one.model_copy(update={"model": _called(model, letter)}) for one in task.models if one.model == model
            ]
    absent = tuple(
        one.model_copy(update={"model": _called(one.model, letter)})
        for letter, task in results.items()
        for one in task.absent
    )
    result = first.model_copy(
        update={
            "models": tuple(models),
            "absent": absent,
            "comparisons": (),
            "published": (),
            "published_differences": (),
        }
    )
    compared = ComparedTask(
        letters=tuple(results), result=result, fine_tuning_differences=changed, cautions=tuple(dict.fromkeys(cautions))
    )
    return compared, tuple(pairs)


def _called(model: str, letter: str) -> str:
    return f"{model} ({letter})"


def letter_of(called: str) -> str:
    """The run of a model that is called ``"pretrained (A)"``."""
    return called.rpartition("(")[2].removesuffix(")")


def _measured(name: str, model: str, run: Run) -> Measured | None:
    """A model of a run with its counts from the kept predictions; None if the run does not have it."""
    task = run.task(name)
    assert task is not None
    result = next((one for one in task.models if one.model == model), None)
    if result is None:
        return None
    return Measured(_called(model, run.facts.letter), result.seeds, run.counts(task, result), result.missing)


def _fine_tuning_differences(results: dict[str, TaskResult]) -> Iterator[Difference]:
    """Settings in which any run differs from the first one."""
    settings = {letter: task.fine_tuning for letter, task in results.items()}
    first = next(iter(settings.values()))
    places = {place: None for other in settings.values() for place, _, _ in differences(first, other)}
    for place in places:
        values = {}
        for letter, tree in settings.items():
            value: object = tree
            for key in place.split("."):
                value = value.get(key) if isinstance(value, dict) else None
            values[letter] = value
        yield Difference.model_validate({"setting": place, "values": values})


def _values(difference: Difference) -> str:
    return ", ".join(
        f"{'unset' if value is None else value} in {letter}" for letter, value in difference.values.items()
    )


def _seed_cautions(measured: Sequence[Measured]) -> Iterator[str]:
    for one in measured:
        if one.missing:
            yield f"{one.model}: seeds that failed and are missing: {_numbers([seed.seed for seed in one.missing])}."
    of_each = [{seed.seed for seed in one.seeds} for one in measured]
    if any(seeds != of_each[0] for seeds in of_each):
        had = "; ".join(
            f"{_numbers(seeds)} in {letter_of(one.model)}" for one, seeds in zip(measured, of_each, strict=True)
        )
        yield f"The seeds are not the same ({had}): the test over items takes those that both models have."


def _numbers(seeds: Sequence[int] | set[int]) -> str:
    """ "1 to 5, 8": runs of three or more in short."""
    parts = []
    for _, group in groupby(enumerate(sorted(seeds)), key=lambda pair: pair[1] - pair[0]):
        run = [seed for _, seed in group]
        parts += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else [str(seed) for seed in run]
    return ", ".join(parts) or "none"


def _verdict(tasks: Sequence[ComparedTask], comparisons: Sequence[Comparison]) -> str:
    """What all comparisons say together, in one sentence."""
    shown = [
        f"{winner} is better than {loser} on {task.result.task}"
        for task in tasks
        for one in task.result.comparisons
        if one.outcome in ("better", "worse")
        for winner, loser in [(one.model, one.baseline)[:: 1 if one.outcome == "better" else -1]]
    ]
    if shown:
        return f"A difference is shown in {len(shown)} of {len(comparisons)} comparisons: {'; '.join(shown)}."
    if all(one.outcome == "unknown" for one in comparisons):
        return "Too few seed runs to say whether the runs differ."
    return "No difference between the runs is shown."
