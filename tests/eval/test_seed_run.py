import argparse
import csv
import json
import math
import random
from pathlib import Path

import pytest
import sklearn.metrics
import torch
import transformers
from seqeval.metrics import classification_report, f1_score
from seqeval.scheme import IOB2
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from eval.classifiers import build_classifier, choose
from eval.data import Split
from eval.dropout import replace_dropout
from eval.encoding import IGNORED, NO_TOKEN, encode
from eval.fine_tuning import _training_batches, fine_tune, predict, schedule
from eval.gathering import STAGE as EVALUATE
from eval.gathering import GatheringSettings, gathering_settings
from eval.item_counts import gathered_path, read_gathered, read_predictions
from eval.results import Results
from eval.seed_run import STAGE, seed_run_settings
from eval.settings import EvaluationSettings, FineTuningSettings
from tasks.contract import StageError, no_progress
from tasks.pretraining.models import build_model
from tasks.pretraining.settings import ModelSettings

WORDS = {"PER": ["রবি", "মিতা", "করিম"], "LOC": ["ঢাকা", "খুলনা", "যশোর"], "O": ["আজ", "যায়", "দেখে", "এবং"]}
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TUNING = {"epochs": 2, "learning_rate": 3e-3, "max_length": 16, "batch_size": 8}
BERT = ModelSettings(architecture="bert", hidden_size=32, layers=2, heads=2, intermediate_size=64, max_positions=32)
ALBERT = BERT.model_copy(update={"architecture": "albert", "embedding_size": 16})


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory) -> Path:
    """WordPiece over the words above, each but the O ones in two pieces; a lone zero-width joiner becomes nothing."""
    pieces = [*WORDS["O"]]
    for word in WORDS["PER"] + WORDS["LOC"]:
        pieces += [word[:2], "##" + word[2:]]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(SPECIAL + pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Replace("\u200d", "")
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    folder = tmp_path_factory.mktemp("tokenizer")
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder):
    return transformers.AutoTokenizer.from_pretrained(tokenizer_folder)


@pytest.fixture(scope="module")
def pretrained(tokenizer_folder, tokenizer, tmp_path_factory) -> Path:
    """An artifact like the pretrain stage's."""
    folder = tmp_path_factory.mktemp("pretrain")
    build_model(BERT, tokenizer, "mlm", seed=7).save_pretrained(folder / "checkpoint")
    tokenizer.save_pretrained(folder / "checkpoint")
    return folder


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory) -> EvaluationSettings:
    folder = tmp_path_factory.mktemp("data")
    rng = random.Random(1)
    for split, count in (("train", 120), ("validation", 24), ("test", 30)):
        sentences, texts = [], ["label,text"]
        for _ in range(count):
            kinds = [rng.choice(["PER", "LOC", "O", "O"]) for _ in range(rng.randint(2, 6))]
            words = [rng.choice(WORDS[kind]) for kind in kinds]
            tags = ["O" if kind == "O" else f"B-{kind}" for kind in kinds]
            sentences.append("".join(f"{word}\t{tag}\n" for word, tag in zip(words, tags, strict=True)))
            topic = rng.choice(["PER", "LOC"])
            texts.append(f"{topic},{rng.choice(WORDS['O'])} {rng.choice(WORDS[topic])}")
        (folder / f"{split}.conll").write_text("\n".join(sentences), encoding="utf-8")
        (folder / f"{split}.csv").write_text("\n".join(texts), encoding="utf-8")

    def task(kind: str, ending: str) -> dict:
        source = {split: str(folder / f"{split}.{ending}") for split in ("train", "validation", "test")}
        return {"kind": kind, "source": {"kind": "files", **source}, "fine_tuning": TUNING}

    tasks = {"ner": task("ner", "conll") | {"published": "wikiann-bn"}, "ncc": task("classification", "csv")}
    return EvaluationSettings(seeds=2, tasks=tasks)


@pytest.fixture(scope="module")
def runs(evaluation, pretrained, tokenizer_folder, tmp_path_factory) -> dict[str, tuple[Path, dict]]:
    """All seed runs, by key."""
    finished = {}
    for key, settings in seed_run_settings(evaluation, BERT).items():
        folder = tmp_path_factory.mktemp(key.replace("/", "-"))
        inputs = {"checkpoint": pretrained} if settings.model == "pretrained" else {"tokenizer": tokenizer_folder}
        finished[key] = (folder, STAGE.run(settings, inputs, folder, no_progress))
    return finished


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


def test_gathering(runs, evaluation, tmp_path):
    settings = gathering_settings(evaluation)
    inputs = {key: folder for key, (folder, _) in runs.items()}
    metrics = EVALUATE.run(settings, inputs, tmp_path, no_progress)
    results = Results.model_validate_json((tmp_path / "results.json").read_text(encoding="utf-8"))
    ner, ncc = results.tasks
    assert (ner.task, ner.metric, ner.majority, ncc.metric) == ("ner", "entity F1", 0.0, "accuracy")
    assert ner.items == {"train": 120, "validation": 24, "test": 30}
    scores = [runs[f"random/ner/{seed}"][1]["score"] for seed in (1, 2)]
    assert [seed.score for seed in ner.models[1].seeds] == scores
    assert ner.models[1].mean == pytest.approx(sum(scores) / 2)
    assert metrics["tasks"]["ner"]["random"]["mean"] == ner.models[1].mean
    assert ner.comparison.difference == pytest.approx(ner.models[0].mean - ner.models[1].mean)
    counts = ner.models[1].item_interval
    assert 0 <= counts.low <= ner.models[1].mean <= counts.high <= 1
    data = json.loads((runs["random/ner/1"][0] / "scores.json").read_text(encoding="utf-8"))["data"]
    assert (ner.sha256, list(ner.labels)) == (data["sha256"], data["labels"])
    assert ner.fine_tuning == evaluation.tasks["ner"].fine_tuning.model_dump()
    gathered = read_gathered(gathered_path(tmp_path, "ner"))
    assert list(gathered) == [f"{model}/ner/{seed}" for model in ("pretrained", "random") for seed in (1, 2)]
    own = read_predictions(runs["random/ner/2"][0])
    assert (gathered["random/ner/2"].gold, gathered["random/ner/2"].predicted) == (own.gold, own.predicted)
    assert len(ner.published) == 4
    assert any("the data are own files" in difference for difference in ner.published_differences)
    assert ncc.published == ()
    with (tmp_path / "results.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8
    details = ncc.models[0].details
    assert details is not None
    assert [one.label for one in details.labels] == ["LOC", "PER"]
    assert [row["macro_f1"] != "" for row in rows] == [False] * 4 + [True] * 4
    with (tmp_path / "results.jsonl").open(encoding="utf-8") as file:
        found = [json.loads(line) for line in file]
    assert [one["score"] for one in found] == [float(row["score"]) for row in rows]
    assert found[0]["per_label"] == runs["pretrained/ner/1"][1]["per_label"]
    assert {(row["task"], row["model"], row["seed"]): float(row["score"]) for row in rows} == {
        (metrics["task"], metrics["model"], str(metrics["seed"])): metrics["score"] for _, metrics in runs.values()
    }


def test_gathering_refuses_a_missing_run_and_other_data(runs, evaluation, tmp_path):
    settings = gathering_settings(evaluation)
    inputs = {key: folder for key, (folder, _) in runs.items()}
    with pytest.raises(StageError, match="pretrained/ner/2 was declared but is missing"):
        EVALUATE.run(
            settings, {key: inputs[key] for key in inputs if key != "pretrained/ner/2"}, tmp_path, no_progress
        )
    other = json.loads((inputs["random/ner/2"] / "scores.json").read_text(encoding="utf-8"))
    other["data"]["sha256"] = "0"
    (tmp_path / "scores.json").write_text(json.dumps(other), encoding="utf-8")
    predictions = (inputs["random/ner/2"] / "predictions.jsonl").read_bytes()
    (tmp_path / "predictions.jsonl").write_bytes(predictions)
    with pytest.raises(StageError, match="not made on the same data"):
        EVALUATE.run(settings, inputs | {"random/ner/2": tmp_path}, tmp_path, no_progress)


def test_a_run_that_failed_is_missing_and_named(runs, evaluation, tmp_path):
    failed = {"random/ner/2": "OutOfMemoryError: 3 GiB"}
    settings = gathering_settings(evaluation).model_copy(update={"missing": failed})
    inputs = {key: folder for key, (folder, _) in runs.items() if key not in failed}
    metrics = EVALUATE.run(settings, inputs, tmp_path, no_progress)
    ner, ncc = Results.model_validate_json((tmp_path / "results.json").read_text(encoding="utf-8")).tasks
    random_twin = ner.models[1]
    assert (random_twin.n, random_twin.declared, random_twin.std) == (1, 2, None)
    assert [(one.seed, one.reason) for one in random_twin.missing] == [(2, "OutOfMemoryError: 3 GiB")]
    assert ner.comparison.outcome == "unknown"
    assert ncc.comparison.outcome == "same"
    assert (metrics["missing"], metrics["seed_runs"]) == (1, 7)
    with (tmp_path / "results.csv").open(encoding="utf-8") as file:
        (row,) = (row for row in csv.DictReader(file) if row["flags"])
    assert (row["model"], row["task"], row["seed"], row["score"]) == ("random", "ner", "2", "")
    assert row["flags"] == "missing: OutOfMemoryError: 3 GiB"
    lines_of = (tmp_path / "results.jsonl").read_text(encoding="utf-8").splitlines()
    missing = {"task": "ner", "model": "random", "seed": 2, "missing": "OutOfMemoryError: 3 GiB"}
    assert json.loads(lines_of[3]) == missing
    # of a model of others it is no reason to lack the rest
    absent = settings.model_copy(
        update={
            "compared": {"xlm-r": "some/model at 0123456"},
            "missing": {
                **failed,
                **{f"xlm-r/{task}/{seed}": "no network" for task in ("ner", "ncc") for seed in (1, 2)},
            },
        }
    )
    EVALUATE.run(absent, {key: folder for key, (folder, _) in runs.items()}, tmp_path, no_progress)
    found = Results.model_validate_json((tmp_path / "results.json").read_text(encoding="utf-8")).tasks[0]
    assert [(one.model, one.title, one.reason) for one in found.absent] == [
        ("xlm-r", "some/model at 0123456", "no network")
    ]
    assert [model.model for model in found.models] == ["pretrained", "random"]
    all_failed = settings.model_copy(update={"missing": {**failed, "random/ner/1": "crashed"}})
    del inputs["random/ner/1"]
    with pytest.raises(StageError, match="ner: all seed runs of random failed, seed 1 with: crashed"):
        EVALUATE.run(all_failed, inputs, tmp_path, no_progress)


def test_one_model_alone_has_no_comparison(runs, tmp_path):
    settings = GatheringSettings(models=("random",), seeds=(1,), tasks={"ncc": {"kind": "classification"}})
    EVALUATE.run(settings, {"random/ncc/1": runs["random/ncc/1"][0]}, tmp_path, no_progress)
    (task,) = Results.model_validate_json((tmp_path / "results.json").read_text(encoding="utf-8")).tasks
    assert task.comparisons == ()
    assert (task.models[0].std, task.models[0].interval) == (None, None)


def test_alignment_first_token_empty_and_truncated_words(tokenizer):
    words = ["রবি", "\u200d", "আজ", "ঢাকা", "খুলনা"]
    tags = ["B-PER", "O", "O", "B-LOC", "B-LOC"]
    labels = ("O", "B-PER", "B-LOC")
    whole = encode(Split([words], [tags]), labels, tokenizer, 16)
    assert whole.first_tokens == [[1, NO_TOKEN, 3, 4, 6]]
    assert whole.labels == [[IGNORED, 1, IGNORED, 0, 2, IGNORED, 2, IGNORED, IGNORED]]
    assert (whole.truncated_items, whole.truncated_words, whole.words_without_tokens) == (0, 0, 1)
    cut = encode(Split([words, ["আজ"]], [tags, ["O"]]), labels, tokenizer, 6)
    assert cut.first_tokens == [[1, NO_TOKEN, 3, 4, NO_TOKEN], [1]]
    assert len(cut.input_ids[0]) == 6
    assert (cut.truncated_items, cut.truncated_words, cut.words_without_tokens) == (1, 1, 1)


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


@pytest.mark.parametrize("kind", ["ner", "classification"])
@pytest.mark.parametrize("shape", [BERT, ALBERT], ids=["bert", "albert"])
def test_twins_share_the_head_and_differ_in_the_body(kind, shape, tokenizer, tmp_path):
    objective = "mlm" if shape is BERT else "mlm+sop"
    source = build_model(shape, tokenizer, objective, seed=7)
    source.save_pretrained(tmp_path)
    tuning = FineTuningSettings(max_length=16)

    def build(seed: int, **where) -> dict[str, torch.Tensor]:
        labels = ("O", "B-PER", "I-PER")
        hardware = choose(tuning)
        return build_classifier(kind, labels, tuning, hardware, seed, tokenizer=tokenizer, **where).state_dict()

    ours, twin, other = build(1, checkpoint=tmp_path), build(1, shape=shape), build(2, shape=shape)
    assert ours.keys() == twin.keys()
    heads = [name for name in ours if name.startswith("classifier.")]
    assert len(heads) == 2
    for name in heads:
        assert torch.equal(ours[name], twin[name])
    assert not torch.equal(twin["classifier.weight"], other["classifier.weight"])
    bodies = [name for name in ours if name.endswith("word_embeddings.weight") or "query.weight" in name]
    assert bodies
    for name in bodies:
        assert torch.equal(ours[name], source.state_dict()[name])
        assert not torch.equal(ours[name], twin[name])
        assert not torch.equal(other[name], twin[name])


def test_dropout_keeps_the_mean_and_is_seeded():
    ones = torch.ones(400, 500, requires_grad=True)

    def dropped(seed: int) -> torch.Tensor:
        layer = torch.nn.Sequential(torch.nn.Dropout(0.25))
        replace_dropout(layer, seed)
        assert torch.equal(layer.eval()(ones), ones)
        return layer.train()(ones)

    values = dropped(1)
    assert values.detach().unique().tolist() == pytest.approx([0.0, 1 / 0.75])
    assert float((values == 0).float().mean()) == pytest.approx(0.25, abs=0.005)
    values.sum().backward()
    assert torch.equal(ones.grad, values.detach())
    assert torch.equal(values, dropped(1))
    assert not torch.equal(values, dropped(2))


def test_a_checkpoint_without_a_body_is_refused(pretrained, tokenizer, tmp_path):
    model = build_model(BERT, tokenizer, "mlm", seed=7)
    kept = {name: weight for name, weight in model.state_dict().items() if "layer.1." not in name}
    model.save_pretrained(tmp_path, state_dict=kept)
    tuning = FineTuningSettings(max_length=16)
    with pytest.raises(StageError, match=r"lacks \d+ weights, such as bert\.encoder\.layer\.1"):
        build_classifier("ner", ("O", "B-X"), tuning, choose(tuning), 1, checkpoint=tmp_path, tokenizer=tokenizer)


def test_more_tokens_than_positions_are_told(tokenizer):
    tuning = FineTuningSettings(max_length=64)
    with pytest.raises(StageError, match="max_length 64 is more than the 32 positions"):
        build_classifier("ner", ("O", "B-X"), tuning, choose(tuning), 1, shape=BERT, tokenizer=tokenizer)


def test_every_item_once_an_epoch_in_batches_of_like_length(tokenizer):
    rng = random.Random(3)
    sentences = [["আজ"] * rng.randint(1, 12) for _ in range(101)]
    split = encode(Split(sentences, [["O"] * len(words) for words in sentences]), ("O", "B-X"), tokenizer, 16)
    batches = list(_training_batches(split, 8, "1/1"))
    assert sorted(item for batch in batches for item in batch) == list(range(101))
    assert batches == list(_training_batches(split, 8, "1/1"))
    assert batches != list(_training_batches(split, 8, "1/2"))
    padded = sum(max(len(split.input_ids[item]) for item in batch) * len(batch) for batch in batches)
    assert padded < 1.1 * sum(map(len, split.input_ids))


def test_schedule_rises_and_falls_linearly():
    factors = [schedule(step, 10, 0.2) for step in range(10)]
    assert factors == pytest.approx([0.5, 1.0, 1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125])
    assert [schedule(step, 2, 0.0) for step in range(2)] == [1.0, 0.5]


def tuned(tokenizer, settings: FineTuningSettings, scores: list[float]):
    sentences = [[WORDS["PER"][number % 3], "আজ"] for number in range(16)]
    split = encode(Split(sentences, [["B-PER", "O"]] * 16), ("O", "B-PER", "I-PER"), tokenizer, 16)
    hardware = choose(settings)
    model = build_classifier("ner", ("O", "B-PER", "I-PER"), settings, hardware, 1, shape=BERT, tokenizer=tokenizer)
    seen = iter(scores)
    common = {"hardware": hardware, "pad_id": 0}
    history = fine_tune(
        model, split, split, settings, seed=1, score=lambda _: next(seen), progress=no_progress, **common
    )
    return history, predict(model, split, settings.batch_size, **common)[0]


def test_the_epoch_of_the_best_score_is_kept(tokenizer):
    settings = FineTuningSettings(epochs=4, batch_size=4, max_length=16, precision="fp32")
    history, loss = tuned(tokenizer, settings, [0.1, 0.9, 0.3, 0.2])
    assert history.best is history.epochs[1]
    assert loss == pytest.approx(history.epochs[1].validation_loss, abs=1e-6)
    assert loss != pytest.approx(history.epochs[3].validation_loss, abs=1e-6)


def test_early_stopping_looks_at_the_loss_and_the_threshold(tokenizer):
    settings = FineTuningSettings(
        epochs=9, batch_size=4, max_length=16, patience=2, threshold=10.0, learning_rate=1e-4, precision="fp32"
    )
    history, loss = tuned(tokenizer, settings, [0.0] * 9)
    assert len(history.epochs) == 3  # the first counts as a fall from infinity, the next two fall too little
    assert history.best is min(history.epochs, key=lambda epoch: epoch.validation_loss)
    assert loss == pytest.approx(history.best.validation_loss, abs=1e-6)


@pytest.mark.parametrize(
    "losses", [(1.0, 0.95, 0.9, 0.85, 0.8, 0.75), (1.0, 1.2, 0.5, 0.6, 0.55, 0.4), (1.0, 0.96, 0.8, 0.79, 0.78, 0.1)]
)
def test_early_stopping_ends_where_that_of_transformers_does(tokenizer, monkeypatch, losses):
    settings = FineTuningSettings(epochs=6, batch_size=16, max_length=16, patience=2, threshold=0.08)
    validation = iter(losses)
    monkeypatch.setattr("eval.fine_tuning.predict", lambda *_, **__: (next(validation), []))
    sentences = Split([["আজ"]] * 4, [["O"]] * 4)
    split = encode(sentences, ("O", "B-PER"), tokenizer, 16)
    hardware = choose(settings)
    model = build_classifier("ner", ("O", "B-PER"), settings, hardware, 1, shape=BERT, tokenizer=tokenizer)
    common = {"seed": 1, "hardware": hardware, "pad_id": 0, "score": lambda _: 0.0, "progress": no_progress}
    history = fine_tune(model, split, split, settings, **common)

    stopping = transformers.EarlyStoppingCallback(settings.patience, settings.threshold)
    # as DeDLOC's scripts have it, in which `greater_is_better` stays unset
    arguments = argparse.Namespace(metric_for_best_model="loss", greater_is_better=None)
    state, control, ended = transformers.TrainerState(), transformers.TrainerControl(), 0
    for loss in losses:
        ended += 1
        stopping.check_metric_value(arguments, state, control, loss)
        if stopping.early_stopping_patience_counter >= settings.patience:
            break
        state.best_metric = loss if state.best_metric is None else min(loss, state.best_metric)
    assert len(history.epochs) == ended < 6


def test_a_loss_that_is_not_a_number_ends_training_and_is_marked(tokenizer, monkeypatch):
    monkeypatch.setattr("eval.fine_tuning.cross_entropy", lambda logits, labels, **_: logits.sum() * math.nan)
    history, _ = tuned(tokenizer, FineTuningSettings(epochs=3, max_length=16), [0.0] * 3)
    assert history.diverged
    assert len(history.epochs) == 1
    assert history.best is None
    assert history.as_json()[0]["training_loss"] is None


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
