"""The tokenizer's figures on held-out text, and those of other tokenizers on the same text.

Imported only by a running stage: the library is imported at the top.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tasks.contract import Progress, StageError, UserError
from tasks.corpus_text import count_documents, read_texts
from tasks.tokenizer_settings import ReferenceTokenizer


def measure(tokenizer: Tokenizer, corpus: Path, progress: Progress, note: str) -> dict[str, Any]:
    """Encode the validation split.

    Returns:
        ``entries``, ``tokens_per_word`` (words: between white space), ``tokens_per_byte`` (of the text as it is, in
        UTF-8), ``unknown_rate`` (of the tokens), ``vocabulary_in_use`` (share of the entries that occur), and
        ``held_out_words``.

    Raises:
        UserError: the split holds no words, or the tokenizer cannot encode them.
    """
    import numpy as np

    entries = tokenizer.get_vocab_size()
    counts = np.zeros(entries, dtype=np.int64)
    words = size = done = 0
    documents = count_documents(corpus, "validation")
    for texts in read_texts(corpus, "validation"):
        try:
            encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        except Exception as error:  # bare, from the library: a Unigram without an entry for unknown characters
            raise UserError(f"cannot encode the held-out text: {' '.join(str(error).split())}") from None
        for encoding in encodings:
            counts += np.bincount(encoding.ids, minlength=entries)
        words += sum(len(text.split()) for text in texts)
        size += sum(len(text.encode()) for text in texts)
        done += len(texts)
        progress(done, documents, unit="documents", note=note)
    tokens = int(counts.sum())
    if not words or not tokens:
        raise UserError("the corpus' validation split holds no words to measure on")
    unknown = _unknown_id(tokenizer)
    return {
        "entries": entries,
        "tokens_per_word": tokens / words,
        "tokens_per_byte": tokens / size,
        "unknown_rate": 0.0 if unknown is None else int(counts[unknown]) / tokens,
        "vocabulary_in_use": int((counts > 0).sum()) / entries,
        "held_out_words": words,
    }


def load_references(references: Sequence[ReferenceTokenizer]) -> dict[str, Tokenizer]:
    """The tokenizers that the user names, by their names.

    Raises:
        UserError: a file or its place on the hub is wrong.
        StageError: the hub does not answer.
    """
    return {reference.name: _load(reference, number) for number, reference in enumerate(references)}


def _load(reference: ReferenceTokenizer, number: int) -> Tokenizer:
    place = f"tokenizer.references.{number}"
    path = reference.file if reference.file is not None else _downloaded(reference, place)
    try:
        tokenizer = Tokenizer.from_file(path)
    except Exception as error:  # bare, from the library
        reason = " ".join(str(error).split())
        raise UserError(f"{place}: {path}: {reason}; name a tokenizer.json of the library tokenizers") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _downloaded(reference: ReferenceTokenizer, place: str) -> str:
    """The path of the hub's ``tokenizer.json`` in the local cache."""
    from huggingface_hub import errors, hf_hub_download

    assert reference.hub is not None, "the settings' validator lets no reference through without a place"
    where = f"{place}: {reference.hub} at {reference.revision}"
    try:
        return hf_hub_download(reference.hub, "tokenizer.json", revision=reference.revision)
    except errors.LocalEntryNotFoundError:
        raise StageError(f"{where}: the hub does not answer and nothing is cached; try again when online") from None
    except (errors.EntryNotFoundError, errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        kind = type(error).__name__.removesuffix("Error")
        raise UserError(
            f"{where}: no tokenizer.json there ({kind}); correct name and revision, or save one and name it as `file`"
        ) from None
    except errors.HFValidationError as error:
        raise UserError(f"{where}: {' '.join(str(error).split())}") from None
    except OSError as error:
        raise StageError(f"{where}: {' '.join(str(error).split())[:300]}; try again") from None


def _unknown_id(tokenizer: Tokenizer) -> int | None:
    """The id of what the vocabulary cannot spell; None for a tokenizer that spells everything, such as byte-level."""
    model = json.loads(tokenizer.to_str())["model"]
    if model.get("unk_id") is not None:
        return int(model["unk_id"])
    token = model.get("unk_token")
    return None if token is None else tokenizer.token_to_id(token)
