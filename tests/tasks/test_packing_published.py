from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks import packing_published
from tasks.packing_published import PublishedPacker
from tasks.packing_rows import Account

sys.path.insert(0, str(Path(__file__).parent))
from packing_runs import (
    CLS,
    SEP,
    SPECIAL,
    arrays,
    copied,
    documents_of_tokens,
)


def published(account: Account, offset: int = 0, *, length: int = 16) -> PublishedPacker:
    return PublishedPacker(length, SPECIAL, dtype=np.uint16, account=account, offset=offset)


def published_rows(documents: list[list[int]], length: int, batch: int) -> list[list[int]]:
    """What the published code makes of documents: cut off, run together, the rest of each batch dropped."""
    rows = []
    for start in range(0, len(documents), batch):
        wrapped = [[CLS, *document[: length - 2], SEP] for document in documents[start : start + batch]]
        joined = [token for document in wrapped for token in document]
        rows += [joined[i : i + length] for i in range(0, len(joined) - length + 1, length)]
    return rows


@settings(max_examples=80, deadline=None)
@given(documents_of_tokens, st.integers(8, 40), st.integers(1, 5))
def test_published_packs_as_published_and_accounts_for_its_losses(
    documents: list[list[int]], length: int, batch: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing_published, "BATCH_DOCUMENTS", batch)
        account = Account()
        packer = published(account, length=length)
        rows, places = [], []
        for row in packer.rows(map(arrays, documents)):
            rows.append(row.ids.tolist())
            places.append((asdict(account), packer.offset))
        packer.finish()
        account.check("train", length)
        assert rows == published_rows(documents, length, batch)
        assert account.tokens_in == sum(map(len, documents))
        assert account.tokens_packed == sum(token not in SPECIAL for row in rows for token in row)
        assert account.tokens_cut_off == sum(max(0, len(document) - (length - 2)) for document in documents)
        assert account.tokens_remainder == account.padding == 0
        for number, (before, offset) in enumerate(places):
            again = Account(**before)
            packer = published(again, offset, length=length)
            rest = packer.rows(arrays(document) for document in documents[again.documents :])
            assert [ids for ids, _, _ in copied(rest)] == rows[number + 1 :]
            packer.finish()
            assert again == account
