"""Turns a tokenizer definition into the ``tokenizers`` library's objects, and a trained tokenizer into its files.

Imported only by a running stage: the library is imported at the top.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from tasks.tokenizer_definition import (
    BertNormalizer,
    DigitsPreTokenizer,
    MetaspacePreTokenizer,
    NormalizerStep,
    PreTokenizerStep,
    ReplaceNormalizer,
    TokenizerDefinition,
)

_PLAIN_NORMALIZERS = {
    "nfc": normalizers.NFC,
    "nfd": normalizers.NFD,
    "nfkc": normalizers.NFKC,
    "nfkd": normalizers.NFKD,
    "nmt": normalizers.Nmt,
    "lowercase": normalizers.Lowercase,
    "strip-accents": normalizers.StripAccents,
}
_PLAIN_PRE_TOKENIZERS = {
    "bert": pre_tokenizers.BertPreTokenizer,
    "whitespace": pre_tokenizers.WhitespaceSplit,
    "punctuation": pre_tokenizers.Punctuation,
}
_METASPACE = "▁"
CONTINUATION = "##"
"""WordPiece's mark of a piece that continues a word (BERT)."""


def build_tokenizer(definition: TokenizerDefinition) -> Tokenizer:
    """A tokenizer with everything but its vocabulary; :func:`set_vocabulary` adds that."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = build_normalizer(definition)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([step for _, step in pre_tokenizer_steps(definition)])
    if definition.decoder == "metaspace":
        scheme = next(step.prepend for step in definition.pre_tokenizer if isinstance(step, MetaspacePreTokenizer))
        tokenizer.decoder = decoders.Metaspace(replacement=_METASPACE, prepend_scheme=scheme)
    else:
        tokenizer.decoder = decoders.WordPiece(prefix=CONTINUATION, cleanup=False)
    five = definition.special_tokens.by_id()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=definition.post_processor.single,
        pair=definition.post_processor.pair,
        special_tokens=[(special.token, special.id) for special in five],
    )
    return tokenizer


def build_normalizer(definition: TokenizerDefinition) -> normalizers.Normalizer:
    """The definition's normaliser steps as one."""
    return normalizers.Sequence([build_step(step) for _, step in definition.steps()])


def build_step(step: NormalizerStep) -> normalizers.Normalizer:
    """One normaliser step, whose pattern the definition has tried."""
    if isinstance(step, ReplaceNormalizer):
        pattern = Regex(step.regex) if step.regex is not None else step.string
        assert pattern is not None, "the definition's validator lets no step through without a pattern"
        return normalizers.Replace(pattern, step.by)
    if isinstance(step, BertNormalizer):
        return normalizers.BertNormalizer(
            clean_text=step.clean_text,
            handle_chinese_chars=step.handle_chinese_chars,
            strip_accents=step.strip_accents,
            lowercase=step.lowercase,
        )
    return _PLAIN_NORMALIZERS[step.step]()


def pre_tokenizer_steps(definition: TokenizerDefinition) -> list[tuple[str, pre_tokenizers.PreTokenizer]]:
    """The definition's pre-tokenizer steps, each with its place for messages."""
    return [
        (f"pre_tokenizer.{number} ({step.step})", _pre_tokenizer(step))
        for number, step in enumerate(definition.pre_tokenizer)
    ]


def set_vocabulary(tokenizer: Tokenizer, model: models.Model, definition: TokenizerDefinition) -> None:
    """Give a tokenizer the vocabulary that was learned, and make the special tokens special."""
    tokenizer.model = model
    tokenizer.add_special_tokens(
        [
            AddedToken(special.token, special=True, normalized=False, lstrip=special.lstrip)
            for special in definition.special_tokens.by_id()
        ]
    )


def save_tokenizer(tokenizer: Tokenizer, definition: TokenizerDefinition, folder: Path) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` for ``AutoTokenizer``."""
    special = definition.special_tokens
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": definition.model_max_length,
        # transformers 5 leaves token_type_ids out unless told, and segments would silently vanish.
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        "padding_side": "right",
        "truncation_side": "right",
        "clean_up_tokenization_spaces": False,
        "pad_token": special.pad.token,
        "unk_token": special.unk.token,
        "cls_token": special.cls.token,
        "sep_token": special.sep.token,
        "mask_token": special.mask.token,
        **({"bos_token": special.bos} if special.bos else {}),
        **({"eos_token": special.eos} if special.eos else {}),
        "added_tokens_decoder": {
            str(token.id): {
                "content": token.token,
                "lstrip": token.lstrip,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": True,
            }
            for token in special.by_id()
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    text = json.dumps(config, ensure_ascii=False, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


def _pre_tokenizer(step: PreTokenizerStep) -> pre_tokenizers.PreTokenizer:
    if isinstance(step, MetaspacePreTokenizer):
        return pre_tokenizers.Metaspace(replacement=_METASPACE, prepend_scheme=step.prepend)
    if isinstance(step, DigitsPreTokenizer):
        return pre_tokenizers.Digits(individual_digits=step.individual)
    return _PLAIN_PRE_TOKENIZERS[step.step]()
