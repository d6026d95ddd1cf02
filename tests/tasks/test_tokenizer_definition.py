from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.contract import UserError
from tasks.tokenizer_definition import (
    TokenizerDefinition,
    built_in_definitions,
    definitions_folder,
    is_definition_path,
    load_definition,
)

PUBLISHED = Path(__file__).parents[2].parent / "shared/data/tokenizers/sahajbert_tokenizer.json"


def values(name: str = "bengali-unigram-32k") -> dict[str, Any]:
    return yaml.safe_load((definitions_folder() / f"{name}.yaml").read_text(encoding="utf-8"))


def written(folder: Path, content: Any) -> str:
    path = folder / "mine.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
    return str(path)


def test_the_built_in_definitions_are_valid() -> None:
    names = built_in_definitions()
    assert names == ["bengali-unigram-32k", "bengali-wordpiece-32k", "bert-wordpiece-32k", "template"]
    for name in names:
        assert load_definition(name).vocabulary_size == 32_000


def test_unigram_ids_are_the_published_ones() -> None:
    specials = load_definition("bengali-unigram-32k").special_tokens
    assert [token.token for token in specials.by_id()] == ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    assert [token.lstrip for token in specials.by_id()] == [False, False, False, False, True]
    assert (specials.bos, specials.eos) == ("[CLS]", "[SEP]")


def test_identity_has_no_description_and_all_that_matters(tmp_path: Path) -> None:
    content = load_definition("bengali-unigram-32k").content()
    json.dumps(content)
    assert "description" not in content
    other = values() | {"description": "another one"}
    assert load_definition(written(tmp_path, other)).content() == content
    other["model_max_length"] = 256
    assert load_definition(written(tmp_path, other)).content() != content


def published_chain() -> TokenizerDefinition:
    """What the comments of bengali-unigram-32k say about the published switches."""
    content = values()
    danda = [step for step in content["normalizer"] if "string" in step]
    content["switches"] = {}
    content["normalizer"] = [
        {"step": "nmt"},
        {"step": "nfkc"},
        {"step": "replace", "regex": " {2,}", "by": " "},
        *danda,
        {"step": "replace", "regex": r"(?<=[\x{0980}-\x{09FF}]):", "by": "ঃ"},
        {"step": "lowercase"},
    ]
    content["keeps"] = ["marks"]
    return TokenizerDefinition.model_validate(content)


@pytest.mark.skipif(not PUBLISHED.exists(), reason="the real data are not here")
def test_the_published_chain_is_expressible() -> None:
    from tokenizers import Tokenizer

    from tasks.tokenizer_building import build_tokenizer

    ours, published = build_tokenizer(published_chain()), Tokenizer.from_file(str(PUBLISHED))
    for text in ("টি: সংখ্যা c: | ৤ ৥ ৷", "র‍্যাব র‌্যাব", "২০২১ সালে  ABC, ড়  \tå", "বাড়ি\nঘর"):
        normalized = published.normalizer.normalize_str(text)
        assert ours.normalizer.normalize_str(text) == normalized
        assert ours.pre_tokenizer.pre_tokenize_str(normalized) == published.pre_tokenizer.pre_tokenize_str(normalized)


def test_the_colon_rule_is_a_switch() -> None:
    from tasks.tokenizer_building import build_normalizer

    definition = load_definition("bengali-unigram-32k")
    assert build_normalizer(definition).normalize_str("সংখ্যা: c:") == "সংখ্যা: c:"
    switched = definition.switched({"colon-to-visarga": True})
    assert build_normalizer(switched).normalize_str("সংখ্যা: c:") == "সংখ্যাঃ c:"
    assert switched.content() != definition.content()
    with pytest.raises(
        UserError, match=r"colon: the definition has no switch of that name; there are colon-to-visarga"
    ):
        definition.switched({"colon": True})
    with pytest.raises(UserError, match="it has none"):
        load_definition("bert-wordpiece-32k").switched({"colon": True})


@pytest.mark.parametrize("name", ["bengali-unigram-32k", "bengali-wordpiece-32k", "template"])
def test_marks_and_joiners_survive_normalisation(name: str) -> None:
    from tasks.tokenizer_building import build_normalizer

    normalizer = build_normalizer(load_definition(name))
    for word in values()["hard_words"] + ["क्‍ष", "தமிழ்", "كِتَاب", "ที่นี่"]:
        # Equal up to the normal form: nothing is lost and nothing is split.
        assert normalizer.normalize_str(word) == unicodedata.normalize("NFKC", word)
    assert normalizer.normalize_str("বাড়ি সময়") == normalizer.normalize_str("বাড়ি সময়")
    assert normalizer.normalize_str("এক\tদুই\u200bতিন\ufeff") == "এক দুই তিন"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"algorithm": "bpe"}, "algorithm: Input should be 'unigram' or 'wordpiece' (got 'bpe')"),
        ({"vocabulary_size": 3}, "vocabulary_size:"),
        ({"normalizer": [{"step": "nfk"}]}, "'nfk'"),
        ({"normalizer": [{"step": "replace", "by": "x"}]}, "give either `string` or `regex`"),
        ({"normaliser": []}, "normaliser: Extra inputs are not permitted"),
        ({"switches": {}}, "switches: 'colon-to-visarga', which a normaliser step names, is missing"),
        ({"switches": {"colon-to-visarga": True, "x": True}}, "switches: 'x' is named by no normaliser step"),
        ({"switches": {"colon-to-visarga": "maybe"}}, "switches.colon-to-visarga: Input should be a valid boolean"),
        ({"scripts": []}, "scripts: List should have at least 1 item"),
        ({"decoder": "wordpiece"}, "decoder wordpiece needs algorithm wordpiece"),
        ({"pre_tokenizer": [{"step": "digits"}]}, "metaspace"),
        ({"post_processor": {"single": "[CLS] $A [END]", "pair": "$A $B"}}, "'[END]' is none of the special tokens"),
        ({"post_processor": {"single": "[CLS]:99999999999999 $A", "pair": "$A $B"}}, "a type id is 0 or 1"),
        ({"post_processor": {"single": "[CLS]:১ $A", "pair": "$A $B"}}, "'[CLS]:১': a type id is 0 or 1"),
        ({"vocabulary_size": 1_000_001}, "vocabulary_size: Input should be less than or equal to 1000000"),
        ({"post_processor": {"single": "$A", "pair": "$B $A"}}, "$A and $B once each"),
    ],
)
def test_a_wrong_definition_gives_one_clear_line(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    path = written(tmp_path, values() | change)
    with pytest.raises(UserError) as caught:
        load_definition(path)
    message = str(caught.value)
    assert says in message
    assert message.startswith(path)
    assert "\n" not in message


def test_special_ids_must_be_the_first(tmp_path: Path) -> None:
    content = values()
    content["special_tokens"]["mask"]["id"] = 31_999
    with pytest.raises(UserError, match="special_tokens: the five ids must be 0 to 4"):
        load_definition(written(tmp_path, content))


@pytest.mark.parametrize(
    ("scripts", "says"),
    [
        (["klingon"], "scripts: 'klingon' is no script whose characters have names"),
        (["latin", "bengaly"], "did you mean bengali?"),
        (["devnagari"], "did you mean devanagari?"),
        ([""], "scripts: '' is no script"),
    ],
)
def test_scripts_that_are_none(scripts: list[str], says: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        load_definition(written(tmp_path, values() | {"scripts": scripts}))
    assert says in str(caught.value)
    assert load_definition(written(tmp_path, values() | {"scripts": ["Bengali", "cjk", "TIBETAN"]})).scripts


@pytest.mark.parametrize("content", ["a: [", "- 1", "", "\x00"])
def test_a_file_that_is_no_definition(content: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"mine\.yaml(:\d+)?: "):
        load_definition(written(tmp_path, content))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("algorithm: unigram\nalgorithm: wordpiece\n", "the key algorithm stands twice"),
        ("special_tokens:\n  pad: {id: 0, id: 1}\n", "the key id stands twice"),
        ("a: 2024-99-99\n", "2024-99-99 is read as a date; quote it"),
        ("a: 1\nb: !!int x\n", "x is no valid int"),
        ("a: !!bool x\n", "x is no valid bool"),
        ("? [a]\n: b\n", "keys are strings; quote it"),
        ("[" * 100_000, "nest"),
    ],
)
def test_yaml_that_a_definition_does_not_need(content: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        load_definition(written(tmp_path, content))
    message = str(caught.value)
    assert re.match(rf"{re.escape(str(tmp_path / 'mine.yaml'))}(:\d+)?: ", message)
    assert says in message
    assert "\n" not in message


def test_unknown_names_and_missing_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean bengali-unigram-32k"):
        load_definition("bengali-unigram-23k")
    for name, says in (("none.yaml", "no such file"), ("a\0.yaml", "NUL"), ("x" * 300 + ".yaml", "name too long")):
        with pytest.raises(UserError, match=f"tokenizer definition: .*{says}"):
            load_definition(str(tmp_path / name))
    assert is_definition_path("a.yaml")
    assert is_definition_path("/x/y")
    assert not is_definition_path("template")
