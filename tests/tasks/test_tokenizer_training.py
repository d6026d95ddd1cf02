from __future__ import annotations

import errno
import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from tokenizer_runs import changed, text_of, train, write_corpus

from tasks.contract import StageError, UserError
from tasks.corpus_text import count_characters, read_texts
from tasks.identity import identity_of
from tasks.tokenizer_settings import TokenizerSettings
from tasks.tokenizer_training import LINE_CHARACTERS, sample_lines, training_lines

REAL = Path(__file__).parents[2].parent / "shared/data/corpus/bn/wiki.jsonl.gz"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus") / "corpus"
    return write_corpus(folder, [text_of(i) for i in range(200)], [text_of(1000 + i) for i in range(20)])


@pytest.mark.parametrize(
    ("definition", "size"), [("bengali-unigram-32k", 120), ("bengali-wordpiece-32k", 140), ("template", 120)]
)
def test_a_trained_tokenizer_serves_its_users(corpus: Path, tmp_path: Path, definition: str, size: int) -> None:
    from transformers import AutoTokenizer

    metrics = train(corpus, tmp_path, definition=definition, vocabulary_size=size)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert len(tokenizer) == metrics["entries"] == size
    assert [tokenizer.convert_tokens_to_ids(t) for t in tokenizer.convert_ids_to_tokens(range(5))] == [0, 1, 2, 3, 4]
    assert (tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.cls_token_id) == (0, 1, 2)
    assert (tokenizer.sep_token_id, tokenizer.mask_token_id, tokenizer.model_max_length) == (3, 4, 512)

    pair = tokenizer("চাঁদ", "নদী")
    ids = pair["input_ids"]
    boundary = ids.index(3) + 1
    assert ids[0] == 2
    assert ids[-1] == 3
    assert pair["token_type_ids"] == [0] * boundary + [1] * (len(ids) - boundary)
    # An unseen character is unknown, and what surrounds it is not.
    assert 1 in tokenizer("চাঁদ 𐀀 নদী")["input_ids"]
    assert tokenizer.decode(tokenizer("র‍্যাব চাঁদ", add_special_tokens=False)["input_ids"]) == "র‍্যাব চাঁদ"
    assert tokenizer.convert_ids_to_tokens(tokenizer("নদী [MASK] ।")["input_ids"]).count("[MASK]") == 1

    assert 0.5 < metrics["tokens_per_word"] < 6
    assert 0 < metrics["tokens_per_byte"] < 1
    assert metrics["unknown_rate"] == 0
    assert 0 < metrics["vocabulary_in_use"] <= 1
    assert metrics["held_out_words"] == 20 * 60
    assert metrics["training_characters"] == count_characters(corpus, "train")


def test_it_loads_beside_a_model_configuration(corpus: Path, tmp_path: Path) -> None:
    """The checkpoint holds config.json too, by which AutoTokenizer could choose another class."""
    from transformers import AutoTokenizer

    train(corpus, tmp_path, vocabulary_size=120)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "albert", "vocab_size": 120}))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert "token_type_ids" in tokenizer("নদী", "চাঁদ")
    assert tokenizer.mask_token_id == 4
    assert len(tokenizer) == 120


def test_english_uncased(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    texts = ["The café was Naïve about quick brown foxes jumping over lazier dogs."] * 20
    metrics = train(
        write_corpus(tmp_path / "corpus", texts, texts[:2]),
        tmp_path / "tokenizer",
        definition="bert-wordpiece-32k",
        vocabulary_size=64,
    )
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    assert metrics["algorithm"] == "wordpiece"
    assert tokenizer.convert_ids_to_tokens(range(5)) == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert tokenizer.decode(tokenizer("Café", add_special_tokens=False)["input_ids"]) == "cafe"


def test_a_small_corpus_cannot_fill_the_vocabulary(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"yields only \d+ pieces, not 32000: set tokenizer.vocabulary_size"):
        train(corpus, tmp_path)
    assert not (tmp_path / "tokenizer.json").exists()


@pytest.mark.parametrize(
    ("definition", "says"),
    [
        ("bengali-unigram-32k", "more characters than tokenizer.vocabulary_size: 16 has room for"),
        ("bengali-wordpiece-32k", "more characters than tokenizer.vocabulary_size: 16 has room for"),
    ],
)
def test_a_vocabulary_smaller_than_the_alphabet(corpus: Path, tmp_path: Path, definition: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        train(corpus, tmp_path, definition=definition, vocabulary_size=16)


def test_damage_to_the_script_fails_before_training(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.tokenizer_fitting.fit_vocabulary", lambda *_: pytest.fail("trained"))
    path = changed(tmp_path, normalizer=[{"step": "nfkd"}, {"step": "strip-accents"}])
    with pytest.raises(UserError, match=r"mine\.yaml: tokenizer check: normalizer\.1 \(strip-accents\) loses U\+09"):
        train(corpus, tmp_path, definition=path, vocabulary_size=120)


def test_a_panic_of_the_library_is_one_line(corpus: Path, tmp_path: Path) -> None:
    # In front of a Bengali letter, where the check's probe has none.
    steps = [{"step": "replace", "regex": "(?=[\u0995-\u09b9])", "by": "x"}, {"step": "nfkc"}]
    with pytest.raises(UserError, match=r"mine\.yaml: `tokenizers` cannot apply its steps to the corpus \(index"):
        train(corpus, tmp_path / "out", definition=changed(tmp_path, normalizer=steps), vocabulary_size=300)


def test_a_full_disk_stays_what_it_is(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tasks.tokenizer_fitting._write_rows", full)
    with pytest.raises(OSError, match="No space left"):
        train(corpus, tmp_path / "out", vocabulary_size=120)


def test_damage_is_accepted_where_nothing_is_promised(corpus: Path, tmp_path: Path) -> None:
    path = changed(tmp_path, normalizer=[{"step": "nmt"}, {"step": "nfkc"}], keeps=["marks"], hard_words=["চাঁদ"])
    assert train(corpus, tmp_path, definition=path, vocabulary_size=120)["entries"] == 120


@pytest.mark.parametrize(("definition", "size"), [("bengali-unigram-32k", 200), ("bengali-wordpiece-32k", 200)])
def test_equal_corpora_give_equal_bytes(corpus: Path, tmp_path: Path, definition: str, size: int) -> None:
    """However the text lies in its files; the library's trainers differ from one call to the next."""
    train(corpus, tmp_path / "one", definition=definition, vocabulary_size=size)
    texts = [text for batch in read_texts(corpus, "train") for text in batch]
    held_out = [text for batch in read_texts(corpus, "validation") for text in batch]
    other = write_corpus(tmp_path / "other", texts, held_out, row_group_size=7)
    train(other, tmp_path / "two", definition=definition, vocabulary_size=size)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_reference_tokenizers_are_measured_on_the_same_text(corpus: Path, tmp_path: Path) -> None:
    first = train(corpus, tmp_path / "first", vocabulary_size=120)
    reference = {"name": "the first", "file": str(tmp_path / "first" / "tokenizer.json")}
    second = train(corpus, tmp_path / "second", vocabulary_size=200, references=[reference])
    figures = ("entries", "tokens_per_word", "tokens_per_byte", "unknown_rate", "vocabulary_in_use", "held_out_words")
    assert second["references"] == {"the first": {name: first[name] for name in figures}}
    assert second["tokens_per_word"] < first["tokens_per_word"]
    # What was compared with changes the record and nothing of the tokenizer.
    third = train(corpus, tmp_path / "third", vocabulary_size=200)
    assert third["references"] == {}
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "second" / name).read_bytes() == (tmp_path / "third" / name).read_bytes()


def test_a_reference_that_cannot_serve(corpus: Path, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text("{}")
    with pytest.raises(UserError, match=r"tokenizer\.references\.0: .*other\.json: .*; name a tokenizer\.json"):
        train(corpus, tmp_path / "a", vocabulary_size=120, references=[{"name": "x", "file": str(path)}])


def test_too_much_unknown_text(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", [text_of(i) for i in range(50)], [text_of(99) + " ও ঔ ঔষধ ঔ" * 20])
    with pytest.raises(UserError, match=r"% of the held-out tokens are unknown, .*U\+0994 BENGALI LETTER AU"):
        train(corpus, tmp_path / "a", vocabulary_size=120)
    assert train(corpus, tmp_path / "b", vocabulary_size=120, max_unknown_rate=0.5)["unknown_rate"] > 0.01


def test_too_little_memory(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.tokenizer_memory.available_memory", lambda: 1000)
    with pytest.raises(StageError, match=r"takes about .* are available: set tokenizer\.sample_characters to \d+ or"):
        train(corpus, tmp_path, vocabulary_size=120)


def test_a_switch_of_the_recipe(corpus: Path, tmp_path: Path) -> None:
    train(corpus, tmp_path, vocabulary_size=120, switches={"colon-to-visarga": True})
    from tokenizers import Tokenizer

    assert Tokenizer.from_file(str(tmp_path / "tokenizer.json")).normalizer.normalize_str("টি:") == "টিঃ"
    with pytest.raises(UserError, match=r"tokenizer\.switches: bengali-unigram-32k: x: the definition has no switch"):
        identity_of(TokenizerSettings(switches={"x": True}), lambda path: path.name)


def test_a_finished_training_is_not_done_again(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = train(corpus, tmp_path, vocabulary_size=120)
    before = (tmp_path / "tokenizer.json").read_bytes()
    for path in tmp_path.iterdir():  # as the store does before a stage goes on
        if path.is_file():
            path.unlink()
    monkeypatch.setattr("tasks.tokenizer_fitting.fit_vocabulary", lambda *_: pytest.fail("trained again"))
    assert train(corpus, tmp_path, vocabulary_size=120) == first
    assert (tmp_path / "tokenizer.json").read_bytes() == before


@pytest.mark.parametrize(("texts", "held_out"), [([], ["ক"]), (["ক খ"], []), ([" \n "], ["ক"])])
def test_an_empty_split(tmp_path: Path, texts: list[str], held_out: list[str]) -> None:
    corpus = write_corpus(tmp_path / "corpus", texts, held_out)
    with pytest.raises(UserError, match="split holds"):
        train(corpus, tmp_path / "tokenizer", vocabulary_size=16)


def test_a_very_long_line_does_no_harm(corpus: Path, tmp_path: Path) -> None:
    texts = [text for batch in read_texts(corpus, "train") for text in batch]
    long = write_corpus(tmp_path / "corpus", ["ক" * 300_000, " ".join(texts)], texts[:5])
    assert train(long, tmp_path / "tokenizer", vocabulary_size=120)["entries"] == 120


def test_training_lines_lose_nothing() -> None:
    text = "ab " * 5000 + "\n\n" + "x" * 10_000 + "\r\nend"
    lines = list(training_lines([text, "", "  "]))
    assert "".join("".join(lines).split()) == "".join(text.split())
    assert max(map(len, lines)) <= LINE_CHARACTERS
    assert all(not line.endswith("a") for line in lines)  # no word is cut where there is white space


def test_the_sample_is_decided_by_the_seed() -> None:
    lines = [f"line {i}" for i in range(2000)]
    drawn = list(sample_lines(lines, 0.25, 10_000, seed=1))
    assert drawn == list(sample_lines(lines, 0.25, 10_000, seed=1))
    assert drawn != list(sample_lines(lines, 0.25, 10_000, seed=2))
    assert 400 < len(drawn) < 600
    assert sum(map(len, sample_lines(lines, 1.0, 500, seed=1))) <= 500


def test_the_stage_samples(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", [text_of(i) for i in range(200)], [text_of(999)])
    metrics = train(corpus, tmp_path / "tokenizer", vocabulary_size=120, sample_characters=20_000)
    assert 10_000 < metrics["training_characters"] <= 20_000


def test_an_equal_sample_gives_equal_bytes_and_another_seed_does_not(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", [text_of(i) for i in range(200)], [text_of(999)])
    found = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        metrics = train(corpus, tmp_path / name, vocabulary_size=120, sample_characters=20_000, seed=seed)
        assert metrics["corpus_characters"] == count_characters(corpus, "train") > metrics["training_characters"]
        found.append((tmp_path / name / "tokenizer.json").read_bytes())
    assert found[0] == found[1] != found[2]


@pytest.mark.skipif(not REAL.exists(), reason="the real data are not here")
def test_real_text(tmp_path: Path) -> None:
    with gzip.open(REAL, "rt", encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in file][:1500]
    corpus = write_corpus(tmp_path / "corpus", texts[100:], texts[:100])
    metrics = train(corpus, tmp_path / "tokenizer", vocabulary_size=1000)
    assert metrics["unknown_rate"] < 0.01
    assert 1 < metrics["tokens_per_word"] < 4
