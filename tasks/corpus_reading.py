"""The first steps of a document: read, looked at by itself, and left out if that is its fate.

Documents are looked at in pieces, which an executor may spread over processes or machines. Whatever it is, they come
in the order of their source; what cannot be read counts when its turn comes, not when it is met.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterator
from concurrent.futures import Executor
from functools import partial
from typing import cast

from tasks.contract import Progress, UserError
from tasks.corpus_account import Account, Fault
from tasks.corpus_cleaning import Analysis, Finding, Piece, analyse
from tasks.corpus_duplicates import Findings
from tasks.corpus_files import Unreadable
from tasks.corpus_shards import Document
from tasks.corpus_sources import FilesSource, HubSource, SampleSource, read_source
from tasks.executor import in_order, versions

PIECE_CHARACTERS = 250_000
PIECE_DOCUMENTS = 500
"""Most that is looked at together: less than a second's work."""

AHEAD = 32
"""Pieces of a source that are read before the first one's findings are taken."""


def place_of(index: int) -> str:
    """Where a recipe describes a source."""
    return f"corpus.sources[{index}]"


class Reading:
    """Reads sources piece by piece and has the pieces looked at.

    Args:
        analysis: what to look for.
        account: what becomes of the documents that are left out here.
        executor: where pieces are looked at.
        progress: told after every piece.
        sources: how many sources there are.
        longest: most bytes of a document in UTF-8.
        skip: what cannot be read is left out; else it ends the reading.
        findings: those of a run that was killed; None to keep none.
    """

    def __init__(
        self,
        analysis: Analysis,
        account: Account,
        executor: Executor,
        progress: Progress,
        *,
        sources: int,
        longest: int,
        skip: bool,
        findings: Findings | None,
    ) -> None:
        self._analysis = analysis
        self._of_analysis = hashlib.blake2b(repr((analysis, versions())).encode(), digest_size=16).digest()
        self._account = account
        self._executor = executor
        self._progress = progress
        self._read = [0.0] * sources
        self._longest = longest
        self._skip = skip
        self._findings = findings

    def documents(
        self, index: int, source: SampleSource | FilesSource | HubSource
    ) -> Iterator[tuple[Document, Finding]]:
        """The documents of a source that are fit for the corpus, with what was found in them.

        Raises:
            UserError: one cannot be read, and ``skip`` is not set.
        """
        number = 0
        pieces = in_order(
            self._executor,
            partial(analyse, self._analysis),
            self._pieces(index, source),
            ahead=AHEAD,
            known=self._known,
        )
        for piece, findings in pieces:
            self._keep(piece, findings)
            for text, finding in zip(piece.texts, findings, strict=True):
                id = f"{source.name}-{number}"
                number += 1
                if isinstance(text, Unreadable):
                    if not self._skip:
                        raise UserError(text.problem)
                    self._account.leave_out(source.name, "unreadable", id, problem=text.problem)
                elif finding is None:
                    self._account.leave_out(source.name, "empty", id)
                elif finding.fault:
                    detail = {"share": float(finding.detail)} if finding.fault == "script" else {"run": finding.detail}
                    self._account.leave_out(source.name, cast(Fault, finding.fault), id, text, **detail)
                else:
                    yield Document(id, source.name, text), finding
            self._tell(index, piece.share, f"{source.name}: {number:,} documents")
        self._tell(index, 1.0, f"{source.name}: all read")

    def _pieces(self, index: int, source: SampleSource | FilesSource | HubSource) -> Iterator[Piece]:
        texts: list[str | Unreadable] = []
        characters, share = 0, 0.0
        for text, share in read_source(source, place_of(index), self._longest):
            if isinstance(text, str):
                text = text.strip()
                characters += len(text)
            texts.append(text)
            if characters >= PIECE_CHARACTERS or len(texts) == PIECE_DOCUMENTS:
                yield Piece(texts, share)
                texts, characters = [], 0
        if texts:
            yield Piece(texts, share)

    def _known(self, piece: Piece) -> list[Finding | None] | None:
        kept = self._findings.get(self._key(piece)) if self._findings else None
        return None if kept is None else cast(list[Finding | None], pickle.loads(kept))

    def _keep(self, piece: Piece, findings: list[Finding | None]) -> None:
        if self._findings:
            self._findings.keep(self._key(piece), pickle.dumps(findings))

    def _key(self, piece: Piece) -> bytes:
        digest = hashlib.blake2b(self._of_analysis, digest_size=16)
        for text in piece.texts:
            data = text.encode() if isinstance(text, str) else b""
            digest.update(b"%d " % len(data) + data)
        return digest.digest()

    def _tell(self, index: int, share: float, note: str) -> None:
        self._read[index] = share
        self._progress(sum(self._read), len(self._read), unit="sources", note=note)
