from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tasks.contract import UserError
from tasks.pretraining.batches import Collator, PackedSplit
from tasks.pretraining.settings import MaskingSettings
from tasks.pretraining.words import Words
from tasks.tokenizer_building import save_tokenizer
from tasks.tokenizer_definition import load_definition

REAL = Path(__file__).parents[3].parent / "shared/data"

TRAINING = [
    "কাজী নজরুল ইসলাম ১৮৯৯ সালের ২৪ মে পশ্চিমবঙ্গের বর্ধমান জেলায় জন্মগ্রহণ করেন।",
    "র‍্যাব-৬ এর ক্যাম্পে (খুলনা) ৩,৫০০ টাকা জমা দেওয়া হয়েছিল; তাই না?",
    "তিনি বললেন, ‘আমি আসব না।’ তারপর চলে গেলেন — আর ফিরলেন না।",
    "The quick brown fox jumped over 12,345 lazy dogs' backs (in 1984); didn't it?",
    "Tokenizers split un-hyphenated words, e.g. internationalisation, into pieces.",
]
"""What the tokenizers of the tests have learnt from; all other characters are unknown to them."""

TRICKY = [
    *TRAINING,
    "র‌্যাব র‍্যাব ক‍্ষ ক‌্ষ ‍ক ক‍ ‌ ‍ র্‍",  # joiners: inside, at an end, alone
    "দাঁড়ি।দাঁড়ি॥ । ॥ ।। কি?! ...…—–-_ 'a' \"b\" (c)[d]{e}<f>",
    "১২৩abc456কখ৭৮ ৳৫০০/- ২০২১-০৫-০৪ 3.14 1,000 ½ ² ৴ ৹",
    "abcকখ বাংলাEnglish Englishবাংলা naïve Åland straße ﬁ",
    "漢字 ab漢cd 漢ab বাং漢লা कखग 🎉a🎉 a🎉b ‽a a‽ ∑x=y ‽‽ 漢‽漢 ১漢১",  # unknown: letters, marks, pictures
    "## #a a##b ##b [MASK] <unk> [UNK] [CLS] </s> ▁a▁▁b _a_",
    "  two  spaces\tand\na line  ",
    "x" * 120,  # longer than WordPiece takes a word: unknown as a whole
    "",
    " ",
]


def train(fitted: Callable[..., Tokenizer], folder: Path, name: str, size: int, **changes) -> Path:
    definition = load_definition(name).model_copy(update=changes)
    save_tokenizer(fitted(definition, TRAINING * 3, size), definition, folder)
    return folder


@pytest.fixture(scope="module")
def trained(fitted, tmp_path_factory: pytest.TempPathFactory):
    """A small tokenizer of each definition, by the definition's name."""
    sizes = {"bengali-unigram-32k": 130, "template": 130, "bengali-wordpiece-32k": 200, "bert-wordpiece-32k": 200}
    folder = tmp_path_factory.mktemp("tokenizers")
    folders = {name: train(fitted, folder / name, name, size) for name, size in sizes.items()}
    return {name: AutoTokenizer.from_pretrained(place) for name, place in folders.items()}


def differing(tokenizer, texts: list[str], unknown_divides: bool) -> list[str]:
    """Texts whose words are not those of ``word_ids()``; beside unknown tokens a word has to begin where told so."""
    words, found = Words(tokenizer), []
    for text in texts:
        encoding = tokenizer(text)
        ids, theirs = np.array([encoding["input_ids"]]), encoding.word_ids()
        expected = np.array([True, *(one is None or one != before for before, one in pairwise(theirs))])
        if unknown_divides:
            unknown = ids[0] == tokenizer.unk_token_id
            expected |= unknown
            expected[1:] |= unknown[:-1]
        if not np.array_equal(words.starts(ids)[0], expected):
            found.append(text)
    return found


@pytest.mark.parametrize(
    ("name", "unknown_divides"),
    [
        ("bengali-unigram-32k", True),
        ("template", True),
        ("bengali-wordpiece-32k", False),
        ("bert-wordpiece-32k", False),
    ],
)
def test_words_are_those_of_the_tokenizer(trained, name, unknown_divides):
    tokenizer = trained[name]
    tokens = [tokenizer(text)["input_ids"] for text in TRICKY]
    assert any(tokenizer.unk_token_id in row for row in tokens)
    words = sum(len(set(tokenizer(text).word_ids())) for text in TRICKY)
    assert sum(map(len, tokens)) > 1.3 * words  # so that many have several pieces
    assert differing(tokenizer, TRICKY, unknown_divides) == []
    # and side by side: joined by nothing, every line's end meets another line's beginning
    assert differing(tokenizer, [one + two for one in TRICKY for two in TRICKY], unknown_divides) == []


@pytest.mark.skipif(not REAL.exists(), reason="the real data are not here")
def test_words_of_real_text(trained):
    published = PreTrainedTokenizerFast(
        tokenizer_file=str(REAL / "tokenizers/sahajbert_tokenizer.json"),
        unk_token="<unk>",
        pad_token="<pad>",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )
    texts = []
    for name in ("bn/laws", "bn/news", "bn/wiki", "bn/poems", "en/wikitext", "en/books"):
        with gzip.open(REAL / f"corpus/{name}.jsonl.gz", "rt", encoding="utf-8") as file:
            texts += [json.loads(next(file))["text"][:2_000] for _ in range(10)]
    assert differing(published, texts, unknown_divides=True) == []
    for name, tokenizer in trained.items():
        assert differing(tokenizer, texts, unknown_divides="wordpiece" not in name) == []


@pytest.mark.parametrize(
    "steps",
    [
        [{"step": "metaspace", "prepend": "never"}],
        [{"step": "metaspace", "prepend": "first"}, {"step": "digits", "individual": False}],
        [{"step": "whitespace"}, {"step": "metaspace", "prepend": "always"}, {"step": "punctuation"}],
        [{"step": "punctuation"}, {"step": "metaspace", "prepend": "first"}],
        [{"step": "digits", "individual": False}, {"step": "metaspace", "prepend": "always"}],
        [{"step": "bert"}, {"step": "metaspace", "prepend": "always"}, {"step": "digits"}],
    ],
)
def test_words_follow_the_steps_of_a_users_definition(fitted, tmp_path, steps):
    definition = load_definition("template")
    content = definition.model_dump(mode="json") | {"pre_tokenizer": steps}
    changed = type(definition).model_validate(content).pre_tokenizer
    folder = train(fitted, tmp_path, "template", 130, pre_tokenizer=changed)
    assert differing(AutoTokenizer.from_pretrained(folder), TRICKY, unknown_divides=True) == []


@pytest.mark.parametrize(
    ("pre_tokenizer", "told"),
    [
        (None, "has no pre-tokenizer"),
        (pre_tokenizers.Whitespace(), "drops the spaces"),
        (
            pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), pre_tokenizers.Split("aba", "isolated")]),
            "more than two",
        ),
    ],
)
def test_words_that_cannot_be_told_are_an_error_of_one_line(pre_tokenizer, told):
    backend = Tokenizer(
        models.Unigram([("<unk>", 0.0), ("▁", -1.0), ("a", -1.0), ("ba", -1.0), ("b", -1.0)], 0, False)
    )
    if pre_tokenizer is not None:
        backend.pre_tokenizer = pre_tokenizer
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", mask_token="[MASK]")
    with pytest.raises(UserError, match=rf"^pretraining\.masking\.whole_words: .*{told}.*whole_words to false$"):
        Collator(tokenizer, MaskingSettings(whole_words=True), sentence_order=False)
    assert Collator(tokenizer, MaskingSettings(), sentence_order=False)


def test_a_slow_tokenizer_has_no_word_ids():
    with pytest.raises(UserError, match="is of the slow kind"):
        Words(SimpleNamespace())


@pytest.fixture(params=["bengali-unigram-32k", "bengali-wordpiece-32k"])
def packed(request, trained, tmp_path, shard_writer):
    """A tokenizer, and blocks of 64 tokens of the training lines, each begun anywhere."""
    tokenizer = trained[request.param]
    ids = np.concatenate([tokenizer(text, add_special_tokens=False)["input_ids"] for text in TRAINING * 2])
    rows = np.array([[2, *ids[start : start + 62], 3] for start in range(0, len(ids) - 62, 3)])
    shard_writer(tmp_path / "data/train-00000-of-00001.arrow", rows)
    return tokenizer, PackedSplit(tmp_path, "train"), rows


def test_words_are_masked_together_at_the_rate(packed):
    tokenizer, split, rows = packed
    everything = np.arange(len(rows))
    collator = Collator(tokenizer, MaskingSettings(whole_words=True), sentence_order=False)
    words = np.cumsum(Words(tokenizer).starts(rows))
    sizes = np.bincount(words)
    ordinary = ~np.isin(rows, tokenizer.all_special_ids).reshape(-1)
    assert sizes.max() > 3
    chosen = masked = kept = 0
    draws = 60
    for seed in range(draws):
        batch = collator(split, everything, np.random.default_rng(seed))
        positions, after = batch.positions.numpy(), batch.input_ids.numpy().reshape(-1)
        assert np.array_equal(rows.reshape(-1)[positions], batch.targets.numpy())
        touched = np.bincount(words[positions], minlength=len(sizes))
        assert set(touched[touched > 0] - sizes[touched > 0]) == {0}
        assert ordinary[positions].all()
        chosen += len(positions)
        masked += int((after[positions] == tokenizer.mask_token_id).sum())
        kept += int((after[positions] == batch.targets.numpy()).sum())
    assert chosen / (draws * ordinary.sum()) == pytest.approx(0.15, abs=0.005)
    assert masked / chosen == pytest.approx(0.8, abs=0.015)
    assert kept / chosen == pytest.approx(0.1, abs=0.015)
    # token by token: a word of several pieces is at times neither all masked nor all kept
    assert any(0 < share < 1 for share in by_word(after[positions] == tokenizer.mask_token_id, words[positions]))


def by_word(flags: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Share of the flags within each word."""
    _, number = np.unique(words, return_inverse=True)
    return np.bincount(number, weights=flags) / np.bincount(number)


def test_the_same_numbers_decide_with_and_without(packed):
    """Single tokens are drawn as before whole words were an option, and whole words by the generator alone too."""
    tokenizer, split, rows = packed
    ordinary = ~np.isin(rows, tokenizer.all_special_ids)
    draws = np.random.default_rng(5).random(rows.shape, dtype=np.float32)
    single, whole, again = (
        Collator(tokenizer, MaskingSettings(whole_words=choice), sentence_order=False)(
            split, np.arange(len(rows)), np.random.default_rng(5)
        )
        for choice in (False, True, True)
    )
    assert np.array_equal(single.positions.numpy(), np.flatnonzero((draws < 0.15) & ordinary))
    assert not np.array_equal(single.positions.numpy(), whole.positions.numpy())
    assert np.array_equal(whole.input_ids.numpy(), again.input_ids.numpy())
