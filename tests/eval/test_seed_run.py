"""One seed run: its record, its predictions and their scores."""

import json
import sys
from pathlib import Path

import sklearn.metrics
import torch
from seqeval.metrics import classification_report, f1_score
from seqeval.scheme import IOB2

from eval.fine_tuning import predict
from eval.seed_run import STAGE, seed_run_settings
from tasks.contract import no_progress

sys.path.insert(0, str(Path(__file__).parent))
from tiny_runs import BERT, WORDS


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "predictions.jsonl").read_text(encoding="utf-8").splitlines()]


def test_seed_runs_are_keyed_and_hold_nothing_of_the_others(evaluation):
    few = seed_run_settings(evaluation, BERT)
    assert len(few) == 8
    assert few["pretrained/ner/1"].model_settings is None
    assert few["random/ner/1"].model_settings == BERT
    more = seed_run_settings(evaluation.model_copy(update={"seeds": 3}), BERT)
    assert {key: more[key] for key in few} == few
    assert few["random/ner/1"].task.published is None


def test_stored_predictions_score_as_seqeval_and_scikit_learn_say(runs, evaluation):
    for key, (folder, metrics) in runs.items():
        rows = lines(folder)
        gold, predicted = [row["gold"] for row in rows], [row["predicted"] for row in rows]
        assert [row["index"] for row in rows] == list(range(30))
        if "/ner/" in key:
            assert metrics["score"] == float(f1_score(gold, predicted))
            assert [len(tags) for tags in gold] == [len(tags) for tags in predicted]
        else:
            assert metrics["score"] == sklearn.metrics.accuracy_score(gold, predicted)
        stored = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
        assert all(stored[name] == metrics[name] for name in metrics.keys() - {"seconds_training", "resolved"})
        assert 1 <= metrics["best_epoch"] <= metrics["epochs"] == len(stored["history"]) == 2
        chosen = stored["history"][metrics["best_epoch"] - 1]
        assert chosen["validation_score"] == max(epoch["validation_score"] for epoch in stored["history"])
        assert metrics["validation_score"] == chosen["validation_score"]


IN_IOB2 = "রবি B-PER\nমিতা B-PER\nযায় O\nঢাকা B-LOC\nখুলনা I-LOC\n\nএবং O\nকরিম B-PER\nঢাকা B-LOC\n"
DIALECTS = {
    "IOB2": IN_IOB2,
    "IOB1": "রবি I-PER\nমিতা B-PER\nযায় O\nঢাকা I-LOC\nখুলনা I-LOC\n\nএবং O\nকরিম I-PER\nঢাকা I-LOC\n",
    "BIOES": "রবি S-PER\nমিতা S-PER\nযায় O\nঢাকা B-LOC\nখুলনা E-LOC\n\nএবং O\nকরিম S-PER\nঢাকা S-LOC\n",
    "tabs": IN_IOB2.replace(" ", "\t"),
    "prefixes": "".join(f"bn:{line}\n" if line else "\n" for line in IN_IOB2.split("\n")[:-1]),
    "windows": "\ufeff" + IN_IOB2.replace("\n", "\r\n"),
    "no final newline": IN_IOB2.rstrip("\n"),
    "3 columns": IN_IOB2.replace(" ", " _ "),
    "5 columns": IN_IOB2.replace(" ", "\t-\t-\t_\t"),
}


def test_every_dialect_of_one_file_scores_alike_and_as_seqeval_says(pretrained, evaluation, tmp_path):
    task, results = evaluation.tasks["ner"], []
    tuning = task.fine_tuning.model_copy(update={"epochs": 1})
    for number, (name, text) in enumerate(DIALECTS.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "test.conll").write_bytes(text.encode())
        source = task.source.model_copy(update={"test": str(folder / "test.conll")})
        changed = task.model_copy(update={"source": source, "fine_tuning": tuning})
        settings = seed_run_settings(evaluation.model_copy(update={"tasks": {"ner": changed}}), BERT)
        metrics = STAGE.run(settings["pretrained/ner/1"], {"checkpoint": pretrained}, folder, no_progress)
        # seqeval reads the file's own tags, as they are written there
        sentences = text.replace("\r", "").strip().split("\n\n")
        gold = [[line.split()[-1] for line in sentence.split("\n")] for sentence in sentences]
        predicted = [row["predicted"] for row in lines(folder)]
        assert metrics["score"] == float(f1_score(gold, predicted)), name
        report = classification_report(gold, predicted, output_dict=True, zero_division=0)
        for kind in ("PER", "LOC"):
            assert metrics["per_label"][kind]["f1"] == float(report[kind]["f1-score"]), name
            assert metrics["per_label"][kind]["precision"] == float(report[kind]["precision"]), name
            assert metrics["per_label"][kind]["recall"] == float(report[kind]["recall"]), name
            assert metrics["per_label"][kind]["support"] == report[kind]["support"], name
        stored = [row["gold"] for row in lines(folder)]
        strict = f1_score(stored, predicted, mode="strict", scheme=IOB2, zero_division=0)
        assert metrics["other_scores"]["strict_f1"] == float(strict), name
        assert metrics["tags_converted"] == {"IOB1": 4, "BIOES": 5}.get(name, 0), name
        results.append((folder / "predictions.jsonl").read_text(encoding="utf-8"))
    assert metrics["score"] > 0
    assert len(set(results)) == 1


def test_the_record_tells_scores_headline_and_warnings(runs):
    folder, metrics = runs["pretrained/ncc/1"]
    rows = lines(folder)
    gold, predicted = [row["gold"] for row in rows], [row["predicted"] for row in rows]
    assert metrics["headline"] == "accuracy"
    macro = sklearn.metrics.f1_score(gold, predicted, average="macro", labels=["LOC", "PER"])
    assert metrics["other_scores"] == {"macro_f1": macro}
    stored = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    matrix = sklearn.metrics.confusion_matrix(gold, predicted, labels=["LOC", "PER"])
    assert stored["scores"]["confusion"] == {"labels": ["LOC", "PER"], "matrix": matrix.tolist()}
    # there are 24 texts of these words, and 120 in training
    assert metrics["overlap"]["test"] > 20
    assert "30 test items" in metrics["warnings"][1]
    assert "are in the training split too, more than max_overlap 1.0%" in metrics["warnings"][1]
    ner = runs["random/ner/1"][1]
    assert ner["headline"].startswith("micro F1 over entities, seqeval's default mode")
    assert set(ner["other_scores"]) == {"precision", "recall", "strict_f1", "token_accuracy"}


def test_the_tasks_are_learnt(runs):
    for key, (_, metrics) in runs.items():
        assert metrics["score"] > 0.9, (key, metrics)
        assert metrics["flags"] == []


def test_equal_seeds_give_equal_bytes_and_others_do_not(runs, evaluation, tokenizer_folder, tmp_path):
    settings = seed_run_settings(evaluation, BERT)
    torch.manual_seed(123)  # must not matter
    torch.rand(5)
    STAGE.run(settings["random/ner/1"], {"tokenizer": tokenizer_folder}, tmp_path, no_progress)
    first, _ = runs["random/ner/1"]
    for name in ("predictions.jsonl", "scores.json"):
        assert (tmp_path / name).read_bytes() == (first / name).read_bytes()
    second, _ = runs["random/ner/2"]
    assert (second / "scores.json").read_bytes() != (first / "scores.json").read_bytes()


def test_words_without_prediction_count_as_o_against_full_gold(pretrained, evaluation, tmp_path):
    task = evaluation.tasks["ner"]
    lines_of_test = ["\u200d\tB-PER"] + [f"{WORDS['LOC'][0]}\tB-LOC"] * 8
    (tmp_path / "test.conll").write_text("\n".join(lines_of_test), encoding="utf-8")
    source = task.source.model_copy(update={"test": str(tmp_path / "test.conll")})
    tuning = task.fine_tuning.model_copy(update={"max_length": 10, "epochs": 1})
    changed = evaluation.model_copy(
        update={"tasks": {"ner": task.model_copy(update={"source": source, "fine_tuning": tuning})}}
    )
    settings = seed_run_settings(changed, BERT)["pretrained/ner/1"]
    metrics = STAGE.run(settings, {"checkpoint": pretrained}, tmp_path, no_progress)
    (row,) = lines(tmp_path)
    assert len(row["predicted"]) == 9
    assert row["predicted"][0] == "O"
    assert row["predicted"][5:] == ["O"] * 4
    assert row["gold"][5:] == ["B-LOC"] * 4
    assert (metrics["truncated_words"], metrics["words_without_tokens"], metrics["truncated_items"]) == (4, 1, 1)


def test_the_test_split_is_predicted_once(pretrained, evaluation, tmp_path, monkeypatch):
    predicted = []
    for user in ("eval.fine_tuning.predict", "eval.tuning.predict"):
        monkeypatch.setattr(
            user,
            lambda model, split, *rest, **more: predicted.append(len(split)) or predict(model, split, *rest, **more),
        )
    settings = seed_run_settings(evaluation, BERT)["pretrained/ncc/1"]
    STAGE.run(settings, {"checkpoint": pretrained}, tmp_path, no_progress)
    assert predicted == [24, 24, 30]
