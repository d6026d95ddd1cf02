"""Each known damage to a script, switched on: the check names what was lost and which step lost it."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tasks.contract import UserError
from tasks.tokenizer_definition import TokenizerDefinition, definitions_folder, load_definition
from tasks.tokenizer_promises import check_promises, marks_to_check, words_to_check
from tasks.tokenizer_scripts import HARD_WORDS, marks_of, named, script_of, shares_of_scripts

SAMPLES = {
    "BENGALI": "কিন্তু বাংলার ঘরে ঘরে সময় কাটে।",
    "DEVANAGARI": "हिन्दी में लिखा हुआ एक वाक्य।",
    "TAMIL": "தமிழ் மொழியில் ஒரு வாக்கியம்.",
    "ARABIC": "هذه جملة مكتوبة باللغة العربية.",
    "THAI": "นี่คือประโยคภาษาไทย",
}

BERT_DEFAULTS = {
    "step": "bert",
    "clean_text": True,
    "handle_chinese_chars": True,
    "strip_accents": None,
    "lowercase": True,
}


def definition(name: str = "template", **change: Any) -> TokenizerDefinition:
    content = yaml.safe_load((definitions_folder() / f"{name}.yaml").read_text(encoding="utf-8"))
    if "normalizer" in change:
        change["switches"] = {}
    return TokenizerDefinition.model_validate(content | change)


@pytest.mark.parametrize("script", SAMPLES)
@pytest.mark.parametrize("name", ["bengali-unigram-32k", "bengali-wordpiece-32k", "template"])
def test_the_built_in_definitions_keep_every_script(name: str, script: str) -> None:
    texts = [SAMPLES[script]]
    assert max(shares_of_scripts(texts).items(), key=lambda item: item[1])[0] == script
    check_promises(load_definition(name), texts)


@pytest.mark.parametrize("script", HARD_WORDS)
def test_every_script_with_hard_words(script: str) -> None:
    assert {script_of(c) for word in HARD_WORDS[script] for c in word} <= {script, "COMBINING", "ZERO", None}
    check_promises(load_definition("template"), HARD_WORDS[script])


@pytest.mark.parametrize(
    ("script", "steps", "says"),
    [
        ("BENGALI", [{"step": "nmt"}, {"step": "nfkc"}], r"normalizer\.0 \(nmt\) loses U\+200D ZERO WIDTH JOINER"),
        (
            "BENGALI",
            [BERT_DEFAULTS],
            r"normalizer\.0 \(bert\) loses U\+09CD BENGALI SIGN VIRAMA, U\+200D ZERO WIDTH J",
        ),
        (
            "BENGALI",
            [{"step": "nfkd"}, {"step": "lowercase"}, {"step": "strip-accents"}],
            r"normalizer\.2 \(strip-accents\) loses U\+09BE BENGALI VOWEL SIGN AA, U\+09CD BENGALI SIGN VIRAMA: it ma",
        ),
        ("DEVANAGARI", [BERT_DEFAULTS], r"normalizer\.0 \(bert\) loses U\+094D DEVANAGARI SIGN VIRAMA"),
        ("TAMIL", [{"step": "nfkc"}, {"step": "strip-accents"}], r"normalizer\.1 \(strip-accents\) loses .*TAMIL"),
        ("ARABIC", [BERT_DEFAULTS], r"normalizer\.0 \(bert\) loses .*U\+064C ARABIC DAMMATAN"),
        (
            "THAI",
            [{"step": "nfc"}, {"step": "strip-accents"}],
            r"normalizer\.1 \(strip-accents\) loses .*THAI CHARACTER",
        ),
        # A rare mark that no word of the sample has: all of the script are tried.
        (
            "BENGALI",
            [{"step": "nfkc"}, {"step": "replace", "string": "\u09c4", "by": ""}],
            r"normalizer\.1 \(replace\) loses U\+09C4 BENGALI VOWEL SIGN VOCALIC RR",
        ),
        (
            "ARABIC",
            [{"step": "nfkc"}, {"step": "replace", "string": "\u0670", "by": ""}],
            r"normalizer\.1 \(replace\) loses U\+0670 ARABIC LETTER SUPERSCRIPT ALEF",
        ),
    ],
)
def test_damage_is_named_with_its_step(script: str, steps: list[Any], says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        check_promises(definition(normalizer=steps), [SAMPLES[script]])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("script", ["BENGALI", "DEVANAGARI", "ARABIC", "THAI"])
def test_letters_with_two_spellings_need_one_form(script: str) -> None:
    """ড় ঢ় য় and the like, composed and decomposed; in Thai there are none, so nothing is amiss."""
    without_form = definition(normalizer=[{"step": "lowercase"}])
    if script == "THAI":
        check_promises(without_form, [SAMPLES[script]])
        return
    with pytest.raises(UserError, match=r"stays another text than .* put nfc or nfkc before the others"):
        check_promises(without_form, [SAMPLES[script]])
    for form in ("nfc", "nfd", "nfkc", "nfkd"):
        check_promises(definition(normalizer=[{"step": form}]), [SAMPLES[script]])


def test_a_word_stays_one_word() -> None:
    # Joiners are not promised, and still no hard word of the definition may be split.
    steps = [{"step": "nmt"}, {"step": "nfkc"}]
    with pytest.raises(UserError, match=r"normalizer\.0 \(nmt\) splits the word .* at U\+200D ZERO WIDTH JOINER"):
        check_promises(definition(normalizer=steps, keeps=["marks"], hard_words=["র‍্যাব"]), [SAMPLES["BENGALI"]])
    check_promises(definition(normalizer=steps, keeps=["marks"], hard_words=[]), [SAMPLES["BENGALI"]])
    cut = [{"step": "metaspace"}, {"step": "punctuation"}]
    with pytest.raises(UserError, match=r"pre_tokenizer\.1 \(punctuation\) cuts the word 'a-b' into ▁a \| - \| b"):
        check_promises(definition(pre_tokenizer=cut, hard_words=["a-b"]), ["ab"])


def test_the_corpus_itself_is_checked() -> None:
    steps = [{"step": "nfkc"}, {"step": "replace", "string": "\u0332", "by": ""}]
    check_promises(definition(normalizer=steps), ["abc"])
    with pytest.raises(UserError, match=r"loses U\+0332 COMBINING LOW LINE: it makes 'aa' of 'a\u0332a'"):
        check_promises(definition(normalizer=steps), ["abc", "q\u0332x"])


def test_a_definition_for_one_script_gets_no_other() -> None:
    english = load_definition("bert-wordpiece-32k")
    check_promises(english, ["Café " * 100, "বাংলা"])
    with pytest.raises(UserError, match="meant for latin, and 100 % of the corpus' letters are bengali"):
        check_promises(english, [SAMPLES["BENGALI"]])


def test_only_what_is_promised_is_asked_for() -> None:
    texts = [SAMPLES["BENGALI"]]
    every = definition()
    assert len(marks_to_check(every, texts)) == len(marks_of("BENGALI")) + 2 > 20
    assert len(marks_to_check(definition(keeps=["joiners"]), texts)) == 2
    assert words_to_check(every, texts) == HARD_WORDS["BENGALI"]
    assert not re.search("[\u200c\u200d]", "".join(words_to_check(definition(keeps=["marks"]), texts)))
    assert words_to_check(definition(keeps=[]), texts) == []


def test_names_for_messages() -> None:
    assert named("\u200d\u200d") == "U+200D ZERO WIDTH JOINER"
    assert named("abcdefg").endswith("U+0065 LATIN SMALL LETTER E and 2 more")
    assert shares_of_scripts(["ab ক।", "1"]) == {"LATIN": 2 / 3, "BENGALI": 1 / 3}
    assert script_of("।") is None
