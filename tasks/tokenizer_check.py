"""Checks a saved tokenizer before anything is built on it.

A broken tokenizer is the cheapest mistake and the dearest to find: nothing fails, and the model just learns less. What
its normaliser does to the script was checked before training (``tokenizer_promises``).

Imported only by a running stage: the libraries are imported at the top.
"""

from __future__ import annotations

import json
import math
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tasks.contract import StageError, UserError
from tasks.tokenizer_building import CONTINUATION
from tasks.tokenizer_definition import TokenizerDefinition
from tasks.tokenizer_promises import words_to_check
from tasks.tokenizer_scripts import named

_LETTERS_NOBODY_USES = range(0x10000, 0x1005E)
"""Linear B syllables: letters to every normaliser and in no corpus, at most by accident a few of them."""


def check_tokenizer(
    folder: Path,
    definition: TokenizerDefinition,
    vocabulary_size: int,
    texts: Sequence[str],
    max_unknown_rate: float = 1.0,
) -> None:
    """Load the tokenizer as its users will, and check it against its definition.

    Args:
        folder: holds ``tokenizer.json`` and ``tokenizer_config.json``.
        definition: what was asked for.
        vocabulary_size: the number of entries asked for.
        texts: held-out texts to check it on, beside hard words.
        max_unknown_rate: of the texts' tokens.

    Raises:
        UserError: too much of the texts is unknown.
        StageError: something else does not hold; one line that says what.
    """
    from transformers import AutoTokenizer

    _check_file(folder / "tokenizer.json", definition)
    loaded = AutoTokenizer.from_pretrained(folder)
    plain = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for name, entries in (("tokenizer.json", plain.get_vocab_size()), ("AutoTokenizer", len(loaded))):
        if entries != vocabulary_size:
            raise StageError(f"tokenizer check: {name} has {entries} entries, not {vocabulary_size}")
    _check_special_tokens(plain, loaded, definition)

    unseen = next(chr(code) for code in _LETTERS_NOBODY_USES if plain.token_to_id(chr(code)) is None)
    unk = definition.special_tokens.unk
    try:
        found = plain.encode(unseen, add_special_tokens=False).ids
    except Exception as error:  # bare, from the library
        raise StageError(f"tokenizer check: an unseen character raises: {' '.join(str(error).split())}") from None
    if unk.id not in found:
        raise StageError(f"tokenizer check: an unseen character does not give {unk.token}")

    # All in one line too: a long one is where sums overflow.
    for text in [*words_to_check(definition, texts), *texts, " ".join(texts)]:
        _check_round_trip(plain, unk.id, text)
        ids = plain.encode(text).ids
        for form in ("NFC", "NFD"):
            if plain.encode(unicodedata.normalize(form, text)).ids != ids:
                raise StageError(f"tokenizer check: {text[:40]!r} has other ids when written in {form}")
        if loaded(text, truncation=False, verbose=False)["input_ids"] != ids:
            raise StageError(f"tokenizer check: AutoTokenizer and tokenizer.json give other ids for {text[:40]!r}")
    _check_unknown_rate(plain, definition, texts, max_unknown_rate)


def _check_file(path: Path, definition: TokenizerDefinition) -> None:
    """What the file says of unknown text, scores and special tokens, before a library smooths it over."""
    content = json.loads(path.read_text(encoding="utf-8"))
    model = content["model"]
    unk = definition.special_tokens.unk
    key, wanted = ("unk_id", unk.id) if definition.algorithm == "unigram" else ("unk_token", unk.token)
    if model.get(key) != wanted:
        raise StageError(f"tokenizer check: {key} is {json.dumps(model.get(key))} in tokenizer.json, not {wanted!r}")
    if definition.algorithm == "unigram":
        for piece, score in model["vocab"]:
            # What is no number becomes null in JSON.
            if score is None or not math.isfinite(score):
                raise StageError(
                    f"tokenizer check: the score of {piece!r} is not a finite number; training overflowed"
                )
    added = {token["content"]: token for token in content["added_tokens"]}
    for special in definition.special_tokens.by_id():
        token = added.get(special.token)
        if token is None or token["id"] != special.id or not token["special"]:
            raise StageError(f"tokenizer check: {special.token} is not special with id {special.id} in tokenizer.json")
        if token["normalized"]:
            raise StageError(
                f"tokenizer check: {special.token} is normalised, so text that only resembles it is taken"
            )
        if token["lstrip"] != special.lstrip:
            raise StageError(f"tokenizer check: lstrip of {special.token} is {token['lstrip']} in tokenizer.json")


def _check_special_tokens(plain: Tokenizer, loaded: Any, definition: TokenizerDefinition) -> None:
    """Tokens, ids and segment ids are those of the definition, in the file and after loading."""
    special = definition.special_tokens
    for name in ("pad", "unk", "cls", "sep", "mask"):
        wanted = getattr(special, name)
        found = (getattr(loaded, f"{name}_token"), getattr(loaded, f"{name}_token_id"))
        if found != (wanted.token, wanted.id):
            raise StageError(f"tokenizer check: {name} is {found} after loading, not {(wanted.token, wanted.id)}")
    for token in special.by_id():
        for ids in (
            plain.encode(token.token * 2, add_special_tokens=False).ids,
            loaded(token.token * 2, add_special_tokens=False)["input_ids"],
        ):
            if ids != [token.id] * 2:
                raise StageError(f"tokenizer check: {token.token} in a text is not one token with id {token.id}")
    pair = loaded("a", "b")
    if list(pair.get("token_type_ids", [])) != plain.encode("a", "b").type_ids:
        raise StageError("tokenizer check: AutoTokenizer does not return the pair template's token_type_ids")


def _check_round_trip(tokenizer: Tokenizer, unk_id: int, text: str) -> None:
    """Decoding gives the normalised text back, but for white space and around what the vocabulary does not hold."""
    normalized = tokenizer.normalizer.normalize_str(text)
    encoding = tokenizer.encode(text, add_special_tokens=False)
    if unk_id in encoding.ids or any(token in text for token in _added(tokenizer)):
        return
    decoded, expected = "".join(tokenizer.decode(encoding.ids).split()), "".join(normalized.split())
    if decoded != expected:
        same = next(
            (i for i, (a, b) in enumerate(zip(decoded, expected, strict=False)) if a != b),
            min(len(decoded), len(expected)),
        )
        lost = Counter(expected) - Counter(decoded)
        what = f", {named(lost)} lost" if lost else ""
        raise StageError(
            f"tokenizer check: decoding gives {decoded[same : same + 20]!r} and not {expected[same : same + 20]!r} of "
            f"{text[:40]!r} back{what}"
        )


def _check_unknown_rate(
    tokenizer: Tokenizer, definition: TokenizerDefinition, texts: Sequence[str], bound: float
) -> None:
    """At most so many of the tokens are unknown; else the characters without an entry are named."""
    unk = definition.special_tokens.unk.id
    unknown = tokens = 0
    characters: Counter[str] = Counter()
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        tokens += len(ids)
        if here := ids.count(unk):
            unknown += here
            characters.update(tokenizer.normalizer.normalize_str(text))
    if unknown <= bound * tokens:
        return
    missing = [
        c
        for c, _ in characters.most_common()
        if not c.isspace() and tokenizer.token_to_id(c) is None and tokenizer.token_to_id(CONTINUATION + c) is None
    ]
    because = f"without an entry are {named(missing[:5])}" if missing else "words are spelled with pieces it lacks"
    raise UserError(
        f"tokenizer check: {100 * unknown / tokens:.2f} % of the held-out tokens are unknown, more than "
        f"tokenizer.max_unknown_rate: {bound} allows; {because}: train on text that has them, or raise the bound"
    )


def _added(tokenizer: Tokenizer) -> list[str]:
    return [token.content for token in tokenizer.get_added_tokens_decoder().values()]
