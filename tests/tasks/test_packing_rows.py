"""The packers, over random documents."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.contract import StageError
from tasks.packing_rows import Account, ConcatenatePacker, PairPacker

sys.path.insert(0, str(Path(__file__).parent))
from packing_runs import (
    CLS,
    PAD,
    SEP,
    SPECIAL,
    arrays,
    copied,
    documents_of_sentences,
    documents_of_tokens,
)


def concatenate(account: Account, offset: int = 0, *, length: int = 16, crossing: bool = True) -> ConcatenatePacker:
    return ConcatenatePacker(length, SPECIAL, crossing=crossing, dtype=np.uint16, account=account, offset=offset)


def pairs(account: Account, offset: int = 0, *, length: int = 16, join: bool = True) -> PairPacker:
    return PairPacker(length, SPECIAL, join_single=join, seed=7, dtype=np.uint16, account=account, offset=offset)


@settings(max_examples=80, deadline=None)
@given(documents_of_tokens, st.integers(8, 40), st.booleans())
def test_concatenate_accounts_for_every_token(documents: list[list[int]], length: int, crossing: bool) -> None:
    account = Account()
    packer = concatenate(account, length=length, crossing=crossing)
    rows = copied(packer.rows(map(arrays, documents)))
    packer.finish()
    account.check("train", length)

    everything = [token for document in documents for token in document]
    assert account.tokens_in == len(everything)
    assert account.documents == len(documents)
    packed = [token for ids, _, _ in rows for token in ids if token not in SPECIAL]
    assert packed == everything[: account.tokens_packed]
    assert account.tokens_dropped == 0
    assert account.tokens_remainder == len(everything) - len(packed) < length - 2
    for ids, boundary, used in rows:
        assert len(ids) == length
        assert ids[0] == CLS
        assert ids[1] != SEP  # no block begins with a separator
        assert ids[used - 1] == SEP
        assert ids[used:] == [PAD] * (length - used)
        assert boundary == 0
    if crossing:
        assert account.padding == 0
    else:
        # A block never holds two documents, and no text is left over.
        assert account.tokens_remainder == 0
        assert all(ids.count(SEP) == 1 for ids, _, _ in rows)
        assert len(rows) == sum(-(-len(document) // (length - 2)) for document in documents)


@settings(max_examples=80, deadline=None)
@given(documents_of_sentences, st.integers(16, 40), st.booleans())
def test_pairs_account_for_every_token(documents: list[list[list[int]]], length: int, join: bool) -> None:
    account = Account()
    packer = pairs(account, length=length, join=join)
    rows = copied(packer.rows([arrays(sentence) for sentence in document] for document in documents))
    packer.finish()
    account.check("train", length)

    everything = [token for document in documents for sentence in document for token in sentence]
    assert account.tokens_in == len(everything)
    packed = []
    for ids, boundary, used in rows:
        assert ids[0] == CLS
        assert ids[boundary - 1] == ids[used - 1] == SEP
        assert 2 < boundary < used - 1  # both segments have tokens
        assert ids[used:] == [PAD] * (length - used)
        packed += ids[1 : boundary - 1] + ids[boundary : used - 1]
    if join:
        assert account.tokens_dropped == 0
        assert packed == everything[: len(packed)]
        assert account.tokens_remainder <= (length - 3) // 2
    else:
        assert account.tokens_remainder == 0
        single = [document for document in documents if sum(map(bool, document)) == 1]
        assert account.tokens_dropped >= sum(
            sum(map(len, document)) for document in single if sum(map(len, document)) <= (length - 3) // 2
        )


@settings(max_examples=40, deadline=None)
@given(documents_of_tokens, documents_of_sentences, st.booleans())
def test_a_packer_goes_on_at_any_block(plain: list[list[int]], nested: list[list[list[int]]], flag: bool) -> None:
    for make, documents in (
        (lambda account, offset=0: concatenate(account, offset, crossing=flag), [arrays(d) for d in plain]),
        (lambda account, offset=0: pairs(account, offset, join=flag), [[arrays(s) for s in d] for d in nested]),
    ):
        account = Account()
        packer = make(account)
        rows, places = [], []
        for row in packer.rows(documents):
            rows += copied(iter([row]))
            places.append((asdict(account), packer.offset))
        packer.finish()
        for number, (before, offset) in enumerate(places):
            again = Account(**before)
            packer = make(again, offset)
            assert copied(packer.rows(documents[again.documents :])) == rows[number + 1 :]
            packer.finish()
            assert again == account


def test_sentences_stay_whole_and_long_ones_continue() -> None:
    account = Account()
    sentences = [arrays([10] * 6), arrays([20] * 5), arrays([30] * 4), arrays([40] * 20)]
    rows = copied(pairs(account).rows([sentences]))
    # 13 tokens fit: 6 + 5, then 4 + the first of four parts of 5, then 5 + 5, and the last part is left single.
    assert [[t for t in ids if t not in SPECIAL] for ids, _, _ in rows] == [
        [10] * 6 + [20] * 5,
        [30] * 4 + [40] * 5,
        [40] * 10,
    ]
    assert rows[0][1] == 8


def test_boundaries_vary_and_follow_the_seed() -> None:
    def boundaries(seed: int) -> list[int]:
        packer = PairPacker(64, SPECIAL, join_single=True, seed=seed, dtype=np.uint16, account=Account())
        return [row.boundary for row in packer.rows([[arrays([9] * 4)] * 200])]

    assert boundaries(1) == boundaries(1)
    assert boundaries(1) != boundaries(2)
    assert len(set(boundaries(1))) > 3


def test_a_wrong_account_is_found() -> None:
    with pytest.raises(StageError, match="5 tokens in, but 4 accounted for"):
        Account(tokens_in=5, tokens_packed=3, tokens_dropped=1).check("train", 16)
    with pytest.raises(StageError, match="2 blocks"):
        Account(tokens_in=5, tokens_packed=5, blocks=2).check("train", 16)


def test_documents_of_one_sentence_are_counted() -> None:
    for join in (True, False):
        account = Account()
        packer = pairs(account, join=join)
        one, two, none = [arrays([9] * 3)], [arrays([8] * 3)] * 2, [arrays([])]
        list(packer.rows([one, two, none, [], [*none, *one], one]))
        packer.finish()
        assert account.single_sentences == 3
        assert account.tokens_dropped == (0 if join else 9)
        account.check("train", 16)
