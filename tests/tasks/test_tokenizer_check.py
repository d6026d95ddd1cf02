"""Each known damage to a saved tokenizer, done to a sound one: the check sees it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tasks.contract import StageError, UserError
from tasks.tokenizer_check import check_tokenizer
from tasks.tokenizer_definition import load_definition

SIZE = 60
TEXTS = ["কিন্তু বাংলার ঘরে ঘরে সময় কাটে র‍্যাব চাঁদ দুঃখ।", "বাড়ি আষাঢ় ঋতু রাষ্ট্র সৌন্দর্য উৎসব, 2021 Dhaka"]
DEFINITION = load_definition("bengali-unigram-32k")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tasks.tokenizer_building import build_tokenizer, save_tokenizer, set_vocabulary
    from tasks.tokenizer_fitting import fit_vocabulary
    from tasks.tokenizer_words import count_words

    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer = build_tokenizer(DEFINITION)
    words = count_words([TEXTS * 10], tokenizer)
    model, _ = fit_vocabulary(words, DEFINITION, SIZE, folder)
    set_vocabulary(tokenizer, model, DEFINITION)
    save_tokenizer(tokenizer, DEFINITION, folder / "sound")
    return folder / "sound"


def damaged(sound: Path, folder: Path, name: str, change: Callable[[dict[str, Any]], Any]) -> Path:
    shutil.copytree(sound, folder / "damaged")
    path = folder / "damaged" / name
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return folder / "damaged"


def test_a_sound_one_passes(sound: Path) -> None:
    check_tokenizer(sound, DEFINITION, SIZE, TEXTS, max_unknown_rate=0.0)


def mask(content: dict[str, Any]) -> dict[str, Any]:
    return next(token for token in content["added_tokens"] if token["content"] == "[MASK]")


def drop_a_piece(content: dict[str, Any]) -> None:
    content["model"]["vocab"].pop()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda c: c["model"].update(unk_id=None), "unk_id is null in tokenizer.json, not 1"),
        (lambda c: mask(c).update(normalized=True), r"\[MASK\] is normalised"),
        (lambda c: mask(c).update(lstrip=False), r"lstrip of \[MASK\] is False"),
        (lambda c: c["added_tokens"].remove(mask(c)), r"\[MASK\] is not special with id 4"),
        (lambda c: mask(c).update(special=False), r"\[MASK\] is not special with id 4"),
        (lambda c: c["model"]["vocab"][9].__setitem__(1, None), "the score of '.*' is not a finite number"),
        (lambda c: c["model"]["vocab"][9].__setitem__(1, 1e400), "the score of '.*' is not a finite number"),
        (drop_a_piece, rf"tokenizer.json has {SIZE - 1} entries, not {SIZE}"),
        # An inference chain that is not the one of the training: composed and decomposed letters part.
        (lambda c: c.update(normalizer={"type": "Lowercase"}), "has other ids when written in NF[CD]"),
        (lambda c: c.update(decoder={"type": "WordPiece", "prefix": "##", "cleanup": True}), "decoding gives"),
        (
            lambda c: c.update(
                decoder={
                    "type": "Sequence",
                    "decoders": [
                        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
                        {"type": "Replace", "pattern": {"String": "\u200d"}, "content": ""},
                    ],
                }
            ),
            r"decoding gives .* back, U\+200D ZERO WIDTH JOINER lost",
        ),
    ],
)
def test_damage_to_the_file(sound: Path, tmp_path: Path, change: Callable[[dict[str, Any]], Any], says: str) -> None:
    folder = damaged(sound, tmp_path, "tokenizer.json", change)
    with pytest.raises(StageError, match=says) as caught:
        check_tokenizer(folder, DEFINITION, SIZE, TEXTS)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda c: c.pop("mask_token"), "mask is .* after loading"),
        (lambda c: c.update(pad_token="[SEP]"), "pad is .* after loading"),
        (lambda c: c.update(model_input_names=["input_ids", "attention_mask"]), "token_type_ids"),
    ],
)
def test_damage_to_the_configuration(
    sound: Path, tmp_path: Path, change: Callable[[dict[str, Any]], Any], says: str
) -> None:
    folder = damaged(sound, tmp_path, "tokenizer_config.json", change)
    with pytest.raises(StageError, match=says):
        check_tokenizer(folder, DEFINITION, SIZE, TEXTS)


def test_too_much_unknown_text_is_named(sound: Path) -> None:
    with pytest.raises(UserError, match=r"of the held-out tokens are unknown, more than .*U\+0994 BENGALI LETTER AU"):
        check_tokenizer(sound, DEFINITION, SIZE, [*TEXTS, "\u0994\u0998\u0998"], max_unknown_rate=0.01)


def test_a_very_long_line(sound: Path) -> None:
    check_tokenizer(sound, DEFINITION, SIZE, ["ক" * 200_000, " ".join(TEXTS * 500)], max_unknown_rate=0.9)
