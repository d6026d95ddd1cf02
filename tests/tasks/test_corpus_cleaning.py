"""What is found in a document by itself: words, scripts, overlaps with test texts, signatures."""

import random

import numpy as np
import pytest

from tasks.corpus_cleaning import (
    Analysis,
    Piece,
    analyse,
    band_rows,
    is_script,
    numbers_of,
    runs_of,
    script_share,
    shows_anything,
    similarity,
    words_of,
)


def findings(analysis, *texts):
    return analyse(analysis, Piece(list(texts), 1.0))


def near(*texts, words=3):
    return findings(Analysis(near_words=words, near_similarity=0.8), *texts)


class TestWords:
    def test_signs_stay_in_their_words_and_punctuation_does_not(self):
        assert words_of("বাংলায় “ক্ষমতা”। (৩টি) র‍্যাব, e.g. Don't!") == [
            "বাংলায়",
            "ক্ষমতা",
            "৩টি",
            "র‍্যাব",
            "e",
            "g",
            "don",
            "t",
        ]

    def test_one_spelling_in_two_encodings_is_one_word(self):
        assert words_of("বড\u09bc") == words_of("ব\u09dc")
        assert len(words_of("ব\u09dc")) == 1
        assert words_of("ＡＢＣ STRASSE") == words_of("abc straße")


class TestRuns:
    def test_equal_runs_have_equal_numbers_and_others_do_not(self):
        one, other = (runs_of(numbers_of(text.split()), 3) for text in ("a b c d", "x b c d a b c"))
        assert one.dtype == np.uint64
        assert (len(one), len(other)) == (2, 5)
        assert one[1] == other[1]
        assert one[0] == other[4]
        assert len({*one.tolist(), *other.tolist()}) == 5

    def test_too_few_words_have_none(self):
        assert len(runs_of(numbers_of(["a", "b"]), 3)) == 0

    def test_order_matters(self):
        assert runs_of(numbers_of(["a", "b"]), 2) != runs_of(numbers_of(["b", "a"]), 2)


class TestScripts:
    @pytest.mark.parametrize(
        ("text", "scripts", "share"),
        [
            ("কলকাতা", ("Bengali",), 1.0),
            ("কি abc ১২৩ ।!", ("Bengali",), 0.4),  # the vowel sign counts, digits and the danda do not
            ("কি abc", ("Bengali", "Latin"), 1.0),
            ("১২৩ !", ("Bengali",), 0.0),
        ],
    )
    def test_share_of_letters_and_marks(self, text, scripts, share):
        assert script_share(text, scripts) == pytest.approx(share)

    def test_names(self):
        assert is_script("Bengali")
        assert is_script("Cyrillic")
        assert not any(map(is_script, ("Bengal", "", "}", "Bengali}|\\p{L")))

    def test_what_is_below_the_share_is_told(self):
        analysis = Analysis(scripts=("Bengali",), script_share=0.5)
        good, bad = findings(analysis, "কলকাতা", "কি abc")
        assert (good.fault, bad.fault, bad.detail) == (None, "script", "0.40")


class TestOverlap:
    def analysis(self, *tests, words=4):
        runs = [runs_of(numbers_of(words_of(test)), words) for test in tests]
        return Analysis(overlap_words=words, test_runs=np.unique(np.concatenate(runs)).tobytes())

    def test_a_run_of_a_test_text_is_found_whatever_its_punctuation_and_case(self):
        analysis = self.analysis("One two, three four five", "six seven")
        inside, none, short, exact = findings(
            analysis, "x y TWO three – (four) five z", "one two three x four five", "two three", "one two three four"
        )
        assert (inside.fault, inside.detail) == ("overlap", "two three four five")
        assert none.fault is short.fault is None
        assert exact.detail == "one two three four"

    def test_without_any_comparable_test_text_nothing_is_found(self):
        assert [finding.fault for finding in findings(self.analysis("a b"), "a b c d e")] == [None]

    def test_random_texts_agree_with_plain_search(self):
        rng = random.Random(0)
        words = [f"w{number}" for number in range(6)]
        tests = [" ".join(rng.choices(words, k=6)) for _ in range(20)]
        texts = [" ".join(rng.choices(words, k=12)) for _ in range(200)]
        found = [finding.fault == "overlap" for finding in findings(self.analysis(*tests), *texts)]
        runs = {tuple(test.split()[start : start + 4]) for test in tests for start in range(3)}
        expected = [any(tuple(text.split()[at : at + 4]) in runs for at in range(9)) for text in texts]
        assert found == expected
        assert 20 < sum(expected) < 180


class TestSignatures:
    def test_the_estimate_is_near_the_true_similarity(self):
        words = [f"word{number}" for number in range(3_000)]
        one, other = near(" ".join(words[:2_000]), " ".join(words[500:2_500]), words=1)
        assert similarity(one.signature, other.signature) == pytest.approx(1_500 / 2_500, abs=0.13)  # 3 deviations
        assert similarity(one.signature, one.signature) == 1.0

    def test_it_depends_on_the_text_alone(self):
        texts = ["এক দুই তিন চার", "a b c d e f g", "", "x"]
        together = near(*texts)
        assert together[2] is None
        for number in (0, 1, 3):
            assert near(texts[number]) == [together[number]]
        assert near("A b,  c d") == near("a B c d") or near("A b,  c d")[0].signature == near("a B c d")[0].signature

    def test_it_is_the_same_on_every_machine_and_in_every_version(self):
        # A library that computes another signature changes which documents are dropped: raise the stage's version.
        (finding,) = near("আমার সোনার বাংলা আমি তোমায় ভালোবাসি", words=2)
        assert np.frombuffer(finding.signature, np.uint32)[:3].tolist() == EXPECTED_SIGNATURE
        assert finding.bands[:2] == EXPECTED_BANDS
        assert len(finding.signature) == 512
        assert len(finding.bands) == 21

    def test_without_words_there_is_none(self):
        (finding,) = near("।।। !!!")
        assert (finding.signature, finding.bands) == (b"", ())

    def test_what_is_dropped_anyway_has_none(self):
        (finding,) = findings(Analysis(scripts=("Latin",), script_share=0.5, near_words=2, near_similarity=0.8), "ক খ")
        assert finding.fault == "script"
        assert finding.signature == b""

    @pytest.mark.parametrize("similar", [0.3, 0.5, 0.8, 0.95, 1.0])
    def test_bands_let_similar_ones_meet(self, similar):
        rows = band_rows(similar)
        meet = 1 - (1 - similar**rows) ** (128 // rows)
        assert meet >= 0.99 or rows == 1
        assert rows == {0.3: 2, 0.5: 3, 0.8: 6, 0.95: 16, 1.0: 128}[similar]


def test_what_is_no_text_is_not_looked_at():
    found = findings(Analysis(), "ক", "", None, "ক")
    assert [finding is None for finding in found] == [False, True, True, False]
    assert found[0].digest == found[3].digest
    assert len(found[0].digest) == 16


EXPECTED_SIGNATURE = [3532236524, 3464517660, 3225434855]
EXPECTED_BANDS = (-480027152302140088, 503639599151574300)


@pytest.mark.parametrize("text", ["", " ", "\x01\x02\x7f", "\u200b\u200d\ufeff", "\u2028\u00ad\t"])
def test_a_text_of_which_nothing_shows_is_none(text):
    assert not shows_anything(text)
    assert analyse(Analysis(), Piece([text, "\x01ক", "."], 1.0))[0] is None
    assert all(analyse(Analysis(), Piece([text, "\x01ক", "."], 1.0))[1:])
