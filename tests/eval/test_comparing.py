"""Evaluations side by side, on predictions whose tests can be reckoned by hand."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from eval.compared_runs import evaluation_in, load_run
from eval.comparing import compare
from eval.comparison_schema import RunComparison
from eval.rendering import comparison_to_html, comparison_to_markdown
from tasks.contract import StageError, UserError

sys.path.insert(0, str(Path(__file__).parent))
from made_evaluations import answers, make_evaluation
from report_artifacts import (
    CHROMIUM,
    NO_CHROMIUM,
    Page,
    build_artifacts,
    markdown_tables,
    shown_by_a_browser,
    write_record,
)


def side_by_side(*folders: Path) -> RunComparison:
    return compare([load_run(folder, letter) for folder, letter in zip(folders, "ABC", strict=False)])


def two(root: Path, first: dict[str, Any], second: dict[str, Any], **more: Any) -> RunComparison:
    """``more`` goes to the second evaluation."""
    return side_by_side(
        make_evaluation(root, first, number=1),
        make_evaluation(root, second, **{"number": 2, "recipe": "other", **more}),
    )


def test_a_difference_that_no_chance_explains(tmp_path: Path) -> None:
    # Equal seeds leave Welch's test no spread: p 0. Of the ten items six differ, all in one direction, so only the two
    # swaps of 2^6 that move all or none of them go as far: p 2/64.
    comparison = two(tmp_path, {"ncc": {"pretrained": [answers(10)] * 2}}, {"ncc": {"pretrained": [answers(4)] * 2}})
    (task,) = comparison.tasks
    (one,) = task.result.comparisons
    assert (one.model, one.baseline, one.paired_seeds) == ("pretrained (A)", "pretrained (B)", 2)
    assert one.difference == pytest.approx(0.6)
    assert one.p_seeds == 0
    assert one.p_items == pytest.approx(2 / 64, abs=0.006)
    assert (one.p, one.p_corrected, one.outcome) == (one.p_items, one.p_items, "better")
    assert one.sentence == (
        "On ncc, pretrained (A) is 60.0 points above pretrained (B) in mean accuracy, more than the luck of seeds and "
        "of test items explains: pretrained (A) is better here."
    )
    shown = "A difference is shown in 1 of 1 comparisons: pretrained (A) is better than pretrained (B) on ncc."
    assert comparison.verdict == shown
    assert task.cautions == ()
    assert comparison.refused == ()
    back = two(
        tmp_path / "back", {"ncc": {"pretrained": [answers(4)] * 2}}, {"ncc": {"pretrained": [answers(10)] * 2}}
    )
    assert back.verdict == shown.replace("(A)", "(C)").replace("(B)", "(A)").replace("(C)", "(B)")


def test_holm_counts_the_comparisons_of_all_tasks(tmp_path: Path) -> None:
    tasks = ("ncc", "topics")
    comparison = two(
        tmp_path,
        {task: {"pretrained": [answers(10)] * 2} for task in tasks},
        {task: {"pretrained": [answers(4)] * 2} for task in tasks},
    )
    found = [one for task in comparison.tasks for one in task.result.comparisons]
    assert [one.p_corrected for one in found] == [2 * one.p for one in found]
    assert [one.outcome for one in found] == ["same", "same"]
    assert comparison.verdict == "No difference between the runs is shown."


def test_an_evaluation_against_itself(tmp_path: Path) -> None:
    folder = make_evaluation(tmp_path, {"ncc": {"pretrained": [answers(8), answers(6)], "random": [answers(3)] * 2}})
    comparison = side_by_side(folder, folder)
    for one in comparison.tasks[0].result.comparisons:
        assert (one.difference, one.p_items, one.p_seeds, one.p_corrected, one.outcome) == (0, 1, 1, 1, "same")
    assert comparison.tasks[0].result.comparisons[0].sentence == (
        "On ncc, pretrained (A) has the same mean accuracy as pretrained (B): no difference shown."
    )
    assert comparison.verdict == "No difference between the runs is shown."


def test_names_of_persons_are_compared_as_entities(tmp_path: Path) -> None:
    gold = [["B-PER", "I-PER", "O"], ["O", "B-PER", "O"]]
    half = [["B-PER", "O", "O"], ["O", "B-PER", "O"]]
    labels = {"labels": ["O", "B-PER", "I-PER"]}
    folders = [
        make_evaluation(
            tmp_path, {"ner": {"pretrained": [said] * 2}}, kind="ner", gold=gold, data=labels, number=number
        )
        for number, said in enumerate((gold, half), start=1)
    ]
    (one,) = side_by_side(*folders).tasks[0].result.comparisons
    assert one.difference == pytest.approx(0.5)  # of two entities in text and answer one is right
    assert one.p_items == 1  # a single item differs: swapped or not, it is as far


RUNS = {"ncc": {"pretrained": [answers(8), answers(7)]}}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"sha256": "6" * 64}, "its data are others than those of A (digest 666666666666, not 555555555555)"),
        ({"labels": ["a", "b", "c"]}, "its labels are a, b, c, those of A a, b"),
    ],
)
def test_other_data_and_labels_are_refused(tmp_path: Path, data: dict[str, Any], reason: str) -> None:
    with pytest.raises(UserError) as error:
        two(tmp_path, RUNS, RUNS, data=data)
    assert f"ncc of B: {reason}" in str(error.value)
    assert "\n" not in str(error.value)
    # With a third run there is something to compare, and what is not is named.
    third = make_evaluation(tmp_path, RUNS, number=3)
    folders = [tmp_path / f"artifacts/evaluate/{number:016x}" for number in (1, 2)]
    comparison = side_by_side(*folders, third)
    assert [(one.task, one.letter, one.reason) for one in comparison.refused] == [("ncc", "B", reason)]
    assert [(one.model, one.baseline) for one in comparison.tasks[0].result.comparisons] == [
        ("pretrained (A)", "pretrained (C)")
    ]


def test_another_order_of_the_labels_is_no_other_label_set(tmp_path: Path) -> None:
    assert two(tmp_path, RUNS, RUNS, data={"labels": ["b", "a"]}).refused == ()


def test_another_metric_is_refused(tmp_path: Path) -> None:
    tags = [["B-PER"], ["O"]]
    ner = {"ncc": {"pretrained": [tags] * 2}}
    with pytest.raises(UserError, match="ncc of B: its metric is entity F1, that of A accuracy"):
        two(tmp_path, RUNS, ner, kind="ner", gold=tags)


def test_other_fine_tuning_is_named(tmp_path: Path) -> None:
    comparison = two(tmp_path, RUNS, RUNS, fine_tuning={"learning_rate": 1e-5, "epochs": 20})
    (task,) = comparison.tasks
    assert [(one.setting, one.values) for one in task.fine_tuning_differences] == [
        ("epochs", {"A": 3, "B": 20}),
        ("learning_rate", {"A": 0.0005, "B": 1e-05}),
    ]
    (caution,) = task.cautions
    assert caution == (
        "The fine-tuning is not the same, so a difference between the runs is not the models' alone: "
        "epochs is 3 in A, 20 in B; learning_rate is 0.0005 in A, 1e-05 in B."
    )


def test_what_any_run_says_of_the_data_is_said_once(tmp_path: Path) -> None:
    first = make_evaluation(tmp_path, RUNS, number=1, warnings=["12 test items are in the training split too"])
    second = make_evaluation(
        tmp_path, RUNS, number=2, warnings=["12 test items are in the training split too", "so are 3 validation items"]
    )
    (task,) = side_by_side(first, second).tasks
    assert task.cautions == ("12 test items are in the training split too", "so are 3 validation items")


def test_seeds_are_paired_by_their_numbers(tmp_path: Path) -> None:
    first = {"ncc": {"pretrained": [answers(right) for right in (10, 9, 4)]}}
    second = {"ncc": {"pretrained": [answers(right) for right in (9, 4, 1)]}}
    (task,) = two(tmp_path, first, second, seeds=[2, 3, 7]).tasks
    (one,) = task.result.comparisons
    # Seeds 2 and 3 answer alike in both, so with them no item differs.
    assert (one.paired_seeds, one.p_items) == (2, 1)
    assert task.cautions == (
        "The seeds are not the same (1 to 3 in A; 2, 3, 7 in B): the test over items takes those that both models "
        "have.",
    )
    (task,) = two(tmp_path / "none", first, second, seeds=[7, 8, 9]).tasks
    (one,) = task.result.comparisons
    assert (one.paired_seeds, one.p_items, one.outcome) == (0, None, "unknown")
    assert "no seed has a run of both" in one.sentence


def test_missing_seeds_models_and_tasks_are_named(tmp_path: Path) -> None:
    first = make_evaluation(tmp_path, {**RUNS, "topics": {"pretrained": [answers(5)] * 2}}, number=1)
    second = {"ncc": {"pretrained": [answers(8)], "random": [answers(2), answers(3)]}}
    lacking = make_evaluation(tmp_path, second, number=2, missing={"pretrained/ncc/2": "no memory"})
    comparison = side_by_side(first, lacking)
    assert [(one.task, one.letter, one.reason) for one in comparison.refused] == [
        ("topics", "A", "no other run measured the same on it"),
        ("topics", "B", "not among its tasks"),
    ]
    (task,) = comparison.tasks
    assert [model.model for model in task.result.models] == ["pretrained (A)", "pretrained (B)", "random (B)"]
    assert "pretrained (B): seeds that failed and are missing: 2." in task.cautions
    assert "random (B) has no counterpart in another run, so it is shown and not compared." in task.cautions
    with pytest.raises(UserError, match="nothing to compare: no model of the same name in two runs"):
        two(tmp_path / "none", RUNS, {"ncc": {"random": [answers(2)]}})


def test_a_model_of_others_without_scores_is_named_with_its_run(tmp_path: Path) -> None:
    others = {"ncc": {**RUNS["ncc"], "xlm-r": [answers(9)] * 2}}
    first = make_evaluation(tmp_path, others, number=1, compared={"xlm-r": "a copy"})
    lacking = {f"xlm-r/ncc/{seed}": "no network" for seed in (1, 2)}
    second = make_evaluation(tmp_path, RUNS, number=2, compared={"xlm-r": "a copy"}, missing=lacking)
    for folders, letter in (((first, second), "B"), ((second, first), "A")):
        comparison = side_by_side(*folders)
        (task,) = comparison.tasks
        assert [(one.model, one.reason) for one in task.result.absent] == [(f"xlm-r ({letter})", "no network")]
        assert f"| xlm-r ({letter}) (a copy) | no score |" in comparison_to_markdown(comparison)


def test_a_folder_that_was_copied_is_enough(tmp_path: Path) -> None:
    ours = make_evaluation(tmp_path / "ours", RUNS)
    theirs = make_evaluation(
        tmp_path / "theirs", {"ncc": {"pretrained": [answers(3), answers(2)]}}, recipe="their-own"
    )
    here = side_by_side(ours, theirs)
    shutil.move(theirs, tmp_path / "sent by mail")
    shutil.rmtree(tmp_path / "theirs")
    assert side_by_side(ours, tmp_path / "sent by mail") == here
    assert [run.name for run in here.runs] == ["demo", "their-own"]


@pytest.mark.parametrize("what", ["gone", "changed", "other version", "no artifact", "other stage"])
def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path, what: str) -> None:
    folder = make_evaluation(tmp_path, RUNS)
    if what == "gone":
        (folder / "predictions/ncc.jsonl").unlink()
        told = "is no whole artifact (predictions/ncc.jsonl is missing)"
    elif what == "changed":
        path = folder / "predictions/ncc.jsonl"
        path.write_text(path.read_text().replace('"pretrained/ncc/1": "b"', '"pretrained/ncc/1": "a"'))
        told = "predictions/ncc.jsonl has another content than when it was published"
    elif what == "other version":
        path = folder / "results.json"
        path.write_text(path.read_text().replace('"format": 3', '"format": 2'))
        write_record(folder, "evaluate", seconds=0, dirty=False)
        told = "another version of sahajflow wrote this evaluation"
    elif what == "no artifact":
        (folder / "record.json").unlink()
        told = "record.json is missing"
    else:
        write_record(folder, "pack", seconds=0, dirty=False)
        told = "is an artifact of pack; give one of evaluate or report"
    if what == "other version":
        (folder / "record.json").unlink()
        write_record(folder, "evaluate", seconds=0, dirty=False)
    with pytest.raises(UserError) as error:
        load_run(evaluation_in(folder, tmp_path), "A")
    assert told in str(error.value)
    assert str(folder) in str(error.value)


def with_results(folder: Path, change: tuple[str, str]) -> Path:
    """A stranger's evaluation: its files are what the record says, and the results are made up."""
    path = folder / "results.json"
    path.write_text(path.read_text().replace(*change))
    (folder / "record.json").unlink()
    write_record(folder, "evaluate", seconds=0, dirty=False)
    return folder


def test_what_a_terminal_would_obey_is_made_visible(tmp_path: Path) -> None:
    folder = make_evaluation(tmp_path, RUNS, warnings=["beware"])
    with_results(folder, ("beware", r"red \u001b[31m\r\u202e"))
    comparison = side_by_side(folder, folder)
    assert comparison.tasks[0].cautions[0] == r"red \x1b[31m\r\u202e"


def test_a_task_that_would_name_a_file_elsewhere_is_refused(tmp_path: Path) -> None:
    folder = with_results(make_evaluation(tmp_path, RUNS), ('"ncc"', r'"../\u001bncc"'))
    with pytest.raises(UserError, match=r"name a task \.\./\\x1bncc, which is no task's name"):
        side_by_side(folder, folder)


def test_predictions_that_do_not_have_the_stated_score_are_refused(tmp_path: Path) -> None:
    folder = make_evaluation(tmp_path, RUNS)
    path = folder / "predictions/ncc.jsonl"
    path.write_text(path.read_text().replace('"pretrained/ncc/1": "b"', '"pretrained/ncc/1": "a"'))
    (folder / "record.json").unlink()
    write_record(folder, "evaluate", seconds=0, dirty=False)
    with pytest.raises(StageError, match=r"the predictions score 1\.000000 and not 0\.800000"):
        side_by_side(folder, folder)


def test_the_evaluation_of_a_report_is_found_in_its_store_or_ours(tmp_path: Path) -> None:
    artifacts = build_artifacts(tmp_path / "store")
    from tasks.record import Input, read_record

    evaluate = artifacts["evaluate"]
    wanted = Input(path=evaluate.relative_to(tmp_path / "store").as_posix(), digest=read_record(evaluate).digest)
    report = tmp_path / "store/artifacts/report/00"
    write_record(report, "report", seconds=0, dirty=False, inputs={"evaluate": wanted})
    assert evaluation_in(report, tmp_path / "nowhere") == evaluate
    shutil.copytree(report, tmp_path / "a" / "b" / "c" / "copied")
    assert evaluation_in(tmp_path / "a" / "b" / "c" / "copied", tmp_path / "store") == evaluate
    with pytest.raises(UserError, match=rf"copied: the predictions lie .* give it instead: {wanted.path}$"):
        evaluation_in(tmp_path / "a" / "b" / "c" / "copied", tmp_path / "nowhere")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> RunComparison:
    root = tmp_path_factory.mktemp("three")
    random = [answers(2), answers(3)]
    return side_by_side(
        make_evaluation(root, {"ncc": {"pretrained": [answers(10)] * 2, "random": random}}, number=1),
        make_evaluation(
            root, {"ncc": {"pretrained": [answers(9), answers(2)], "random": random}}, number=2, recipe="<b>`x`"
        ),
        make_evaluation(root, RUNS, number=3, data={"sha256": "6" * 64}),
    )


def test_page_and_markdown_show_everything(three: RunComparison) -> None:
    html, markdown = comparison_to_html(three), comparison_to_markdown(three)
    page = Page(html)
    for text in (
        "A (demo), B (<b>`x`) and C (demo)",
        three.verdict,
        "ncc of C: its data are others than those of A",
        "pretrained (A)",
        "of <b>`x`",
        "100.00 ± 0.00",
        "seed 1: 90.00",
        three.tasks[0].result.comparisons[0].sentence,
        "p, corrected",
        "0123456789ab",
    ):
        assert text in page.text
    assert "<b>" not in html
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert not {tag for tag, name, _ in page.attributes if name in {"src", "onload"} or tag == "script"}
    scores, comparisons, *details, runs = markdown_tables(markdown)
    assert [row[0].strip() for row in scores[2:6]] == [
        "pretrained (A)", "pretrained (B)", "random (A)", "random (B)"
    ]  # fmt: skip
    assert [row[0].strip() for row in comparisons[2:]] == [
        "pretrained (A) against pretrained (B)", "random (A) against random (B)"
    ]  # fmt: skip
    assert [row[0].strip() for row in runs[2:]] == ["A", "B", "C"]
    assert any("pretrained (B)" in row[0] for table in details for row in table)
    assert RunComparison.model_validate(json.loads(three.model_dump_json())) == three


@pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)
def test_page_opens_in_a_browser_without_complaint(three: RunComparison, tmp_path: Path) -> None:
    assert three.tasks[0].result.comparisons[0].sentence in shown_by_a_browser(comparison_to_html(three), tmp_path)
