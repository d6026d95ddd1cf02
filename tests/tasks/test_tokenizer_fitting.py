from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.contract import UserError
from tasks.tokenizer_definition import load_definition
from tasks.tokenizer_fitting import fit_vocabulary
from tasks.tokenizer_seeds import seed_pieces
from tasks.tokenizer_words import Words

PIECES = ["ab", "abc", "abd", "bcd", "cab", "dab", "dcba"]


def words(texts: list[str]) -> Words:
    return Words(sorted(texts), [3 + i for i in range(len(texts))], 100)


def fit(name: str, size: int, texts: list[str], folder: Path) -> tuple[dict[str, int], int]:
    from tokenizers import Tokenizer

    model, left_out = fit_vocabulary(words(texts), load_definition(name), size, folder)
    return Tokenizer(model).get_vocab(), left_out


def test_unigram_leaves_out_what_the_trainer_keeps_for_itself(tmp_path: Path) -> None:
    vocabulary, left_out = fit("bengali-unigram-32k", 16, [*PIECES, "a\tb", "\u2585a"], tmp_path)
    assert len(vocabulary) == 16
    assert {"a", "b", "c", "d"} <= set(vocabulary)
    assert left_out == 3 + 11


@pytest.mark.parametrize(("name", "text"), [("bengali-unigram-32k", "\u2585"), ("bengali-wordpiece-32k", "\n")])
def test_a_text_that_the_trainer_keeps_for_itself(name: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="every word of the corpus has a character"):
        fit(name, 20, [text], tmp_path)


def test_a_special_token_in_the_text_is_no_piece(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    text = Words(["[CLS]", "[CLS]a", "[CLS]b", "ab", "ba"], [90, 4, 5, 6, 7], 600)
    model, _ = fit_vocabulary(text, load_definition("template"), 16, tmp_path)
    vocabulary = Tokenizer(model).get_vocab()
    assert (vocabulary["<unk>"], vocabulary["[CLS]"]) == (1, 2)
    assert sorted(vocabulary.values()) == list(range(16))


def test_word_pieces_in_a_fixed_order(tmp_path: Path) -> None:
    first, left_out = fit("bengali-wordpiece-32k", 18, PIECES, tmp_path)
    assert first == fit("bengali-wordpiece-32k", 18, PIECES, tmp_path)[0]
    assert left_out == 0
    assert [first[token] for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "##a", "##b")] == list(range(7))


@pytest.mark.parametrize("name", ["bengali-unigram-32k", "bengali-wordpiece-32k"])
def test_another_process_learns_the_same(name: str, tmp_path: Path) -> None:
    """Where hash maps are seeded otherwise."""
    program = (
        "import sys, hashlib; from pathlib import Path; from tokenizers import Tokenizer\n"
        "from tasks.tokenizer_definition import load_definition; from tasks.tokenizer_words import Words\n"
        "from tasks.tokenizer_fitting import fit_vocabulary\n"
        "texts = sorted(a + b + c + d for a in 'abcd' for b in 'abcd' for c in 'ab' for d in 'cd')\n"
        "words = Words(texts, [2 + i % 3 for i in range(len(texts))], 1)\n"
        "model, _ = fit_vocabulary(words, load_definition(sys.argv[1]), 20, Path(sys.argv[2]))\n"
        "print(hashlib.sha256(Tokenizer(model).to_str().encode()).hexdigest())\n"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program, name, str(tmp_path)],
            check=True,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


@pytest.mark.parametrize("name", ["bengali-unigram-32k", "bengali-wordpiece-32k"])
def test_a_vocabulary_that_does_not_fit(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"yields only \d+ pieces, not 500: set tokenizer.vocabulary_size to \d+ or"):
        fit(name, 500, PIECES, tmp_path)
    with pytest.raises(UserError, match=r"has room for \(\d+ entries are needed\)"):
        fit(name, 16, [chr(0x4E00 + i) for i in range(20)], tmp_path)


def test_more_seeds_where_the_best_are_too_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(0)
    syllables = [a + b for a in "kgtdpbnm" for b in "aeiou"]
    texts = ["".join(draw.choices(syllables, k=draw.randint(2, 4))) for _ in range(400)]
    texts = sorted(set(texts))
    limits = []

    def counted(words: list[str], counts: list[int], limit: int) -> list[tuple[str, int]]:
        limits.append(limit)
        return seed_pieces(words, counts, limit)

    monkeypatch.setattr("tasks.tokenizer_fitting.seed_pieces", counted)
    monkeypatch.setattr("tasks.tokenizer_fitting.SEEDS_AN_ENTRY", 1)
    assert len(fit("bengali-unigram-32k", 100, texts, tmp_path)[0]) == 100
    assert limits == [100, 400]
