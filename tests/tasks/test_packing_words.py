from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from tasks import word_cache
from tasks.packing_words import WordEncoder
from tasks.tokenizer_definition import load_definition
from tasks.word_cache import CACHED_LENGTH
from tasks.word_locality import Edges, beginnings, endings, keeps_spaces, obstacle, separators

REAL = Path(__file__).parents[2].parent / "shared/data"
DEFINITIONS = ["bengali-unigram-32k", "bengali-wordpiece-32k", "bert-wordpiece-32k", "published"]
PIECES = [
    *"aBzক্ষাি।:|,.1২—中가ㅏéΣσßİÅ😀",
    *" \n\t\r\v\f\x00\x01\x1c\x85\u00a0\u1680\u2003\u2028\u3000",  # what is, or becomes, white space or nothing
    *"\u0301\u0344\u0345\u09bc\u09be\u09c7\u09cd\u09d7\u1161\u11a8\uff9e\u200b\u200c\u200d\u200e\u2060\ufeff\ufffd",
    *[
        "▁",
        "´",
        "¨",
        "[SEP]",
        "[MASK]",
        "[mask]",
        "<pad>",
        "[UNK]",
        "\u00a0 ",
        "ক ",
        "  ",
        " ।",
        "টি: ",
        "ক" * 70,
        "ab" * 90,
    ],
]


def sample() -> list[str]:
    draw = random.Random(5)
    letters = "কখগঘচজটডতদনপবমযরলশসহ"
    words = ["".join(draw.choices(letters, k=draw.randint(1, 4))) + draw.choice(["", "া", "ি", "্"]) for _ in range(400)]
    words += ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(1, 6))) for _ in range(200)]
    ends = ["", "", "", "।", ",", "?", ":", " ১২", " 7"]
    return [" ".join(draw.choice(words) + draw.choice(ends) for _ in range(40)) + " éÅß—가" for _ in range(150)]


def published() -> Tokenizer:
    """The steps of the published sahajBERT file, whose colon rule looks back and whose Nmt makes joiners spaces."""
    tokenizer = Tokenizer(models.Unigram())
    replace = normalizers.Replace
    from tokenizers import Regex

    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Nmt(),
            normalizers.NFKC(),
            replace(Regex(" {2,}"), " "),
            replace("|", "।"),
            replace(Regex(r"(?<=[\u0980-\u09ff]):"), "ঃ"),
            normalizers.Lowercase(),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(), pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Punctuation()]
    )
    return tokenizer


@pytest.fixture(scope="module", params=DEFINITIONS)
def tokenizer(request: pytest.FixtureRequest, fitted: Callable[..., Tokenizer]) -> Tokenizer:
    definition = load_definition("bengali-unigram-32k" if request.param == "published" else request.param)
    made = fitted(definition, sample(), 400, published() if request.param == "published" else None)
    made.encode_special_tokens = True
    return made


def check(tokenizer: Tokenizer, encoder: WordEncoder, texts: list[str]) -> None:
    ids, bounds = encoder.encode(encoder.cut(pa.array(texts, pa.string())))
    assert len(bounds) == len(texts) + 1
    assert bounds[-1] == len(ids)
    for number, text in enumerate(texts):
        whole = tokenizer.encode(text, add_special_tokens=False).ids
        assert ids[bounds[number] : bounds[number + 1]].tolist() == whole, ascii(text)


def test_the_definitions_are_encoded_by_word(tokenizer: Tokenizer) -> None:
    assert obstacle(tokenizer) is None
    assert set(" \n\t\r") <= set(separators(tokenizer))


def test_ids_are_those_of_whole_texts(tokenizer: Tokenizer) -> None:
    encoder = WordEncoder(tokenizer, np.uint16)
    text = "\n".join(sample())
    check(tokenizer, encoder, [*sample(), "", " ", "", "\n\n", text, text.replace(" ", "\n\n"), f" {text} "])
    check(tokenizer, encoder, [])
    check(tokenizer, encoder, [""])


def test_ids_of_adversarial_texts(tokenizer: Tokenizer) -> None:
    encoder = WordEncoder(tokenizer, np.uint16)
    draw = random.Random(11)
    check(tokenizer, encoder, ["".join(draw.choices(PIECES, k=draw.randint(0, 12))) for _ in range(2000)])
    # Everywhere in the table of characters, at a word's front, within, and at its end.
    characters = [chr(code) for code in (*range(0x0C00), *range(0x2000, 0x2100), *range(0x3000, 0x3100))]
    check(tokenizer, encoder, [f"ক{c} {c}x{c} {c} a{c}b" for c in characters])


def test_ids_of_any_text(tokenizer: Tokenizer) -> None:
    encoder = WordEncoder(tokenizer, np.uint16)

    @settings(max_examples=40, deadline=None)
    @given(st.lists(st.one_of(st.text(max_size=30), st.lists(st.sampled_from(PIECES), max_size=20).map("".join))))
    @example(["ক \u0301খ", "a\u00a0 b", "\u200e a", "a \u200e"])
    def holds(texts: list[str]) -> None:
        check(tokenizer, encoder, texts)

    holds()


def test_slices_of_arrays(tokenizer: Tokenizer) -> None:
    encoder = WordEncoder(tokenizer, np.uint16)
    texts = sample()[:9]
    ids, bounds = encoder.encode(encoder.cut(pa.array(texts).slice(3, 4)))
    alone, ends = encoder.encode(encoder.cut(pa.array(texts[3:7])))
    assert ids.tolist() == alone.tolist()
    assert bounds.tolist() == ends.tolist()


def test_the_cache_is_bounded_and_keeps_what_recurs(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_cache, "CACHED_WORDS", 50)
    encoder = WordEncoder(tokenizer, np.uint16)
    most = 0
    for number in range(40):
        texts = [
            f"সব সময় {number}ক {number}খ {'ক' * (CACHED_LENGTH + 1)}",
            " ".join(f"{number}a{i}" for i in range(9)),
        ]
        check(tokenizer, encoder, texts)
        kept = encoder._cache.words.to_pylist()
        most = max(most, len(kept))
        assert "সব" in kept
    assert 50 <= most < 2 * (50 + 20)
    assert all(len(word) <= CACHED_LENGTH for word in kept)


def test_words_that_are_known_are_not_encoded_again(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = WordEncoder(tokenizer, np.uint16)
    check(tokenizer, encoder, sample())
    asked: list[str] = []
    encode_new = encoder._new
    monkeypatch.setattr(
        encoder, "_new", lambda texts, words: asked.extend(texts.to_pylist()) or encode_new(texts, words)
    )
    check(tokenizer, encoder, [*sample(), "নতুন"])
    assert asked == ["নতুন"]


@pytest.mark.skipif(not REAL.exists(), reason="the real data are not here")
def test_real_text(tokenizer: Tokenizer) -> None:
    encoder = WordEncoder(tokenizer, np.uint16)
    for path in sorted(REAL.glob("corpus/*/*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            check(
                tokenizer, encoder, [json.loads(line)["text"][:3000] for line, _ in zip(file, range(12), strict=False)]
            )


# ---- what is not encoded by word, and why ----


def simple(normalizer: object = None, pre_tokenizer: object = None) -> Tokenizer:
    vocabulary = [("<unk>", 0.0), ("▁", -2.0), ("x", -2.0), ("▁x", -1.0), ("a", -2.0)]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=0))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer or pre_tokenizers.WhitespaceSplit()
    tokenizer.encode_special_tokens = True
    return tokenizer


def replace(pattern: str, by: str, *, regex: bool = True) -> Tokenizer:
    from tokenizers import Regex

    return simple(normalizers.Replace(Regex(pattern) if regex else pattern, by))


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (simple(normalizers.Strip()), "the normaliser step Strip"),
        (simple(normalizers.Prepend("▁")), "the normaliser step Prepend"),
        (simple(normalizers.Sequence([normalizers.NFC(), normalizers.Sequence([normalizers.Strip()])])), "Strip"),
        (
            simple(None, pre_tokenizers.Metaspace(prepend_scheme="never")),
            "the pre-tokenizer Metaspace with prepend never",
        ),
        (simple(None, pre_tokenizers.Metaspace(split=False)), "the pre-tokenizer Metaspace"),
        (simple(None, pre_tokenizers.Metaspace()), "how it treats runs of spaces"),
        (simple(None, pre_tokenizers.ByteLevel()), "the pre-tokenizer ByteLevel"),
        (
            simple(None, pre_tokenizers.Sequence([pre_tokenizers.Punctuation(), pre_tokenizers.Metaspace()])),
            "the pre-tokenizer Punctuation",
        ),
        (replace("a b", "ab", regex=False), "Replace 'a b'"),
        (replace("ab", "", regex=False), "Replace 'ab'"),
        (replace("a(?= )", "b"), "Replace"),
        (replace(r"(?<=[ক\t-\r]):", "b"), "Replace"),
        (replace("(?<=[ক-খ]):", ""), "Replace"),
        (replace("[é-í]", ""), "Replace"),
        (replace("^a", "b"), "Replace"),
        (replace("a|b c", ""), "Replace"),
        (replace("x", "y"), "the letter 'x'"),
        (replace(" ", "_"), "how it treats runs of spaces"),
    ],
)
def test_a_tokenizer_that_looks_past_words_is_known(made: Tokenizer, reason: str) -> None:
    assert reason in str(obstacle(made))


@pytest.mark.parametrize("pattern", ["a", "[a-cক]+", r"[\x00-\x08\u200e\x{202A}]", "(?<=[ক-হ]):", " {2,}"])
def test_replacements_within_words(pattern: str) -> None:
    by = " " if pattern.startswith(" ") else "b"
    assert obstacle(replace(pattern, by)) is None


def test_endings_are_cut_off_whatever_they_end() -> None:
    cutting = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()])
    assert {"।", ".", "!"} <= set(endings(simple(None, cutting)))
    assert endings(simple(None, pre_tokenizers.WhitespaceSplit())) == ""
    for behavior in ("merged_with_previous", "removed", "contiguous"):
        steps = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation(behavior)]
        assert endings(simple(None, pre_tokenizers.Sequence(steps))) == ""
    from tokenizers import Regex

    for pattern in ("[।!]", "(?<=[ক-হ])।", "।+"):
        changing = simple(normalizers.Replace(Regex(pattern), "|"), cutting)
        assert obstacle(changing) is None
        assert "।" not in endings(changing)
        assert "." in endings(changing)


def test_added_tokens_and_dropout_are_obstacles() -> None:
    added = simple()
    added.add_tokens([AddedToken("x y")])
    assert obstacle(added) == "the added token 'x y'"
    special = simple()
    special.add_special_tokens(["[SEP]"])
    assert obstacle(special) is None
    dropout = Tokenizer(models.BPE({"x": 0, "a": 1}, [], dropout=0.1))
    dropout.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    assert obstacle(dropout) == "the model BPE that draws at random"


def test_edges_and_beginnings(tokenizer: Tokenizer) -> None:
    edges = Edges(tokenizer)
    of = lambda text: edges.of(np.array([ord(c) for c in text], dtype=np.uint32)).tolist()  # noqa: E731
    assert of("aক।😀") == [3, 3, 3, 3]
    assert of("\u0301\u09be") == [Edges.ENDS, Edges.ENDS] or tokenizer.normalizer.normalize_str("x\u0301") == "x"
    begins = beginnings(tokenizer)
    if not keeps_spaces(tokenizer):
        assert begins is None
        return
    assert of("\u00a0▁") == [0, 0]
    assert begins is not None
    assert [begins[i] for i in tokenizer.encode("ক, খ", add_special_tokens=False).ids].count(True) == 2
