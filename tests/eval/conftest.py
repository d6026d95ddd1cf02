"""A tokenizer, a pretrained model, two tasks and all their seed runs, made once: tiny, and really trained."""

import random
import sys
from pathlib import Path

import pytest
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from eval.seed_run import STAGE, seed_run_settings
from eval.settings import EvaluationSettings
from tasks.contract import no_progress
from tasks.pretraining.models import build_model

sys.path.insert(0, str(Path(__file__).parent))
from tiny_runs import BERT, SPECIAL, TUNING, WORDS


@pytest.fixture(scope="session")
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


@pytest.fixture(scope="session")
def tokenizer(tokenizer_folder):
    return transformers.AutoTokenizer.from_pretrained(tokenizer_folder)


@pytest.fixture(scope="session")
def pretrained(tokenizer_folder, tokenizer, tmp_path_factory) -> Path:
    """An artifact like the pretrain stage's."""
    folder = tmp_path_factory.mktemp("pretrain")
    build_model(BERT, tokenizer, "mlm", seed=7).save_pretrained(folder / "checkpoint")
    tokenizer.save_pretrained(folder / "checkpoint")
    return folder


@pytest.fixture(scope="session")
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


@pytest.fixture(scope="session")
def runs(evaluation, pretrained, tokenizer_folder, tmp_path_factory) -> dict[str, tuple[Path, dict]]:
    """All seed runs, by key."""
    finished = {}
    for key, settings in seed_run_settings(evaluation, BERT).items():
        folder = tmp_path_factory.mktemp(key.replace("/", "-"))
        inputs = {"checkpoint": pretrained} if settings.model == "pretrained" else {"tokenizer": tokenizer_folder}
        finished[key] = (folder, STAGE.run(settings, inputs, folder, no_progress))
    return finished
