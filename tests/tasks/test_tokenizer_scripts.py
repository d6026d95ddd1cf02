"""Names of scripts: which there are, and whether those of a corpus and of a definition go together."""

import pytest

from tasks.tokenizer_scripts import known_scripts, script_name_problem, script_of, scripts_contradict


def test_known_scripts_are_those_of_letters() -> None:
    assert {"BENGALI", "LATIN", "CJK", "HANGUL", "NKO", "ADLAM", "VAI", "YI"} <= known_scripts()
    assert {script_of(character) for character in "কaनก한あ𞤀"} <= known_scripts()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("bengali", None),
        ("Cjk", None),
        ("HIRAGANA", None),
        ("bengalli", "did you mean bengali?"),
        ("klingon", "take the first word of its characters' names"),
    ],
)
def test_a_name_that_no_character_has(name: str, says: str | None) -> None:
    problem = script_name_problem(name)
    assert (problem is None) == (says is None)
    assert says is None or says in str(problem)


@pytest.mark.parametrize(
    ("kept", "meant", "contradict"),
    [
        (["Bengali"], ["bengali"], False),
        (["Latin", "Bengali"], ["bengali"], False),
        (["Han"], ["cjk"], False),
        (["Han", "Hiragana"], ["katakana", "cjk"], False),
        (["Beng"], ["bengali"], False),
        (["Latin"], ["bengali", "devanagari"], True),
        (["Han"], ["hangul"], True),
    ],
)
def test_scripts_of_corpus_and_definition(kept: list[str], meant: list[str], contradict: bool) -> None:
    assert scripts_contradict(kept, meant) == contradict
