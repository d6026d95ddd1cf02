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
    trainers,
)

from tasks.contract import UserError
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
_CONTINUATION = "##"
"""WordPiece's mark of a piece that continues a word (BERT)."""


def build_tokenizer(definition: TokenizerDefinition) -> Tokenizer:
    """An untrained tokenizer with everything but its vocabulary.

    Raises:
        UserError: a regular expression of the definition is wrong.
    """
    unk = definition.special_tokens.unk.token
    tokenizer = Tokenizer(models.Unigram() if definition.algorithm == "unigram" else models.WordPiece(unk_token=unk))
    tokenizer.normalizer = build_normalizer(definition)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([_pre_tokenizer(step) for step in definition.pre_tokenizer])
    if definition.decoder == "metaspace":
        scheme = next(step.prepend for step in definition.pre_tokenizer if isinstance(step, MetaspacePreTokenizer))
        tokenizer.decoder = decoders.Metaspace(replacement=_METASPACE, prepend_scheme=scheme)
    else:
        tokenizer.decoder = decoders.WordPiece(prefix=_CONTINUATION, cleanup=False)
    five = definition.special_tokens.by_id()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=definition.post_processor.single,
        pair=definition.post_processor.pair,
        special_tokens=[(special.token, special.id) for special in five],
    )
    return tokenizer


def build_normalizer(definition: TokenizerDefinition) -> normalizers.Normalizer:
    """The definition's normaliser steps as one.

    Raises:
        UserError: a regular expression is wrong.
    """
    steps = []
    for number, step in enumerate(definition.normalizer):
        try:
            steps.append(_normalizer(step))
        except Exception as error:  # the library raises bare Exception for a wrong pattern
            reason = " ".join(str(error).split())
            raise UserError(f"normalizer.{number}: {reason}; correct the pattern") from None
    return normalizers.Sequence(steps)


def build_trainer(definition: TokenizerDefinition, vocabulary_size: int) -> trainers.Trainer:
    """The trainer of the definition's algorithm; ``vocabulary_size`` includes the special tokens."""
    special_tokens = [
        AddedToken(special.token, special=True, normalized=False, lstrip=special.lstrip)
        for special in definition.special_tokens.by_id()
    ]
    if definition.algorithm == "unigram":
        return trainers.UnigramTrainer(
            vocab_size=vocabulary_size,
            special_tokens=special_tokens,
            # Without it the file says `unk_id: null`, and encoding an unseen character raises.
            unk_token=definition.special_tokens.unk.token,
            show_progress=False,
        )
    return trainers.WordPieceTrainer(
        vocab_size=vocabulary_size,
        special_tokens=special_tokens,
        continuing_subword_prefix=_CONTINUATION,
        show_progress=False,
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


def _normalizer(step: NormalizerStep) -> normalizers.Normalizer:
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


def _pre_tokenizer(step: PreTokenizerStep) -> pre_tokenizers.PreTokenizer:
    if isinstance(step, MetaspacePreTokenizer):
        return pre_tokenizers.Metaspace(replacement=_METASPACE, prepend_scheme=step.prepend)
    if isinstance(step, DigitsPreTokenizer):
        return pre_tokenizers.Digits(individual_digits=step.individual)
    return _PLAIN_PRE_TOKENIZERS[step.step]()
