"""What is found in documents by looking at each of them alone: the part of cleaning that is spread over workers.

A *word* is a run of letters, marks and digits, compared in NFKC and without case. Words become numbers of 64 bits
(XXH3), and a run of words one number, made of theirs by a polynomial; so all that follows is arithmetic on arrays.

* **Script**: the share of letters and marks that belong to the expected scripts (Unicode's property Script).
* **Overlap**: a run of n words that also stands in a test text. The GPT-2 report looked for such runs of 8.
* **Near duplicates**: MinHash (Broder 1997) of the set of runs of n words. A signature's 128 numbers are grouped into
  bands; two documents that agree in a whole band are compared by their signatures (locality-sensitive hashing).

Nothing here depends on the other documents, nor on the machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

PERMUTATIONS = 128
"""Numbers in a signature. The estimate of a similarity s has a standard deviation of sqrt(s (1 - s) / 128)."""

BAND_RECALL = 0.99
"""Probability with which two documents of exactly the asked similarity meet in a band."""

_MULTIPLIER = 0x9E3779B97F4A7C15
"""Of the polynomial over the words' numbers, modulo 2**64: odd, so that no word's bits are lost (2**64 / golden
ratio)."""


@dataclass(frozen=True)
class Analysis:
    """What to look for; None is: do not look.

    Attributes:
        scripts: names of Unicode scripts.
        script_share: least share of letters and marks in them.
        overlap_words: length of the runs that test texts are compared by.
        test_runs: sorted numbers of the test texts' runs, 8 bytes each in the machine's order.
        near_words: length of the runs whose sets are compared.
        near_similarity: from which Jaccard similarity of those sets on two documents are near duplicates.
    """

    scripts: tuple[str, ...] | None = None
    script_share: float = 0.0
    overlap_words: int | None = None
    test_runs: bytes = b""
    near_words: int | None = None
    near_similarity: float = 0.0

    @property
    def costly(self) -> bool:
        """Whether it takes more than a digest."""
        return not (self.scripts is self.overlap_words is self.near_words is None)


class Finding(NamedTuple):
    """What was found in one document."""

    digest: bytes
    """BLAKE2b of the text, 16 bytes."""
    fault: str | None = None
    """Why it is to be dropped: ``script`` or ``overlap``."""
    detail: str = ""
    """The share, or the run of words."""
    signature: bytes = b""
    """128 numbers of 4 bytes; none if it is dropped or has no words."""
    bands: tuple[int, ...] = ()
    """A signed number of 64 bits for each band."""


class Piece(NamedTuple):
    """Documents of one source that are looked at together."""

    texts: list[Any]
    """Texts; anything else stands for a document that is not to be looked at."""
    share: float
    """Share of the source that was read when it came."""


def analyse(analysis: Analysis, piece: Piece) -> list[Finding | None]:
    """A finding for each text of a piece, None where there is none."""
    shows = [isinstance(text, str) and shows_anything(text) for text in piece.texts]
    findings = iter(_analysed(analysis, [text for text, there in zip(piece.texts, shows, strict=True) if there]))
    return [next(findings) if there else None for there in shows]


def shows_anything(text: str) -> bool:
    """Whether there is more to a text than white space, control and format characters, joiners among them."""
    import unicodedata

    # Nearly always the first character decides.
    return any(unicodedata.category(c) not in {"Cc", "Cf", "Zs", "Zl", "Zp"} for c in text)


def _analysed(analysis: Analysis, texts: list[str]) -> list[Finding]:
    findings = [
        Finding(hashlib.blake2b(text.encode(), digest_size=16).digest(), *_script_fault(analysis, text))
        for text in texts
    ]
    if analysis.overlap_words is None and analysis.near_words is None:
        return findings
    sets = []
    for number, text in enumerate(texts):
        runs = None
        if not findings[number].fault:
            findings[number], runs = _compared(analysis, findings[number], text)
        sets.append(runs)
    if analysis.near_words is None:
        return findings
    with_words = [number for number, runs in enumerate(sets) if runs is not None]
    for number, signature in zip(with_words, _signatures([sets[number] for number in with_words]), strict=True):
        bands = _bands(signature, analysis.near_similarity)
        findings[number] = findings[number]._replace(signature=signature.tobytes(), bands=bands)
    return findings


def _compared(analysis: Analysis, finding: Finding, text: str) -> tuple[Finding, Any]:
    """The finding with an overlap in it if there is one; and the runs that near duplicates share, if they matter."""
    import numpy as np

    words = words_of(text)
    numbers = numbers_of(words)
    if analysis.overlap_words is not None:
        where = _overlap(runs_of(numbers, analysis.overlap_words), np.frombuffer(analysis.test_runs, np.uint64))
        if where is not None:
            run = " ".join(words[where : where + analysis.overlap_words])
            return finding._replace(fault="overlap", detail=run), None
    if analysis.near_words is None or not words:
        return finding, None
    # A text of fewer words than a run is one run.
    return finding, runs_of(numbers, min(analysis.near_words, len(words)))


def words_of(text: str) -> list[str]:
    """The words of a text, as they are compared."""
    import unicodedata

    return list(_patterns()["word"].findall(unicodedata.normalize("NFKC", text).casefold()))


def numbers_of(words: Sequence[str]) -> Any:
    """A number of 64 bits for each word, in a NumPy array."""
    import numpy as np
    from xxhash import xxh3_64_intdigest

    return np.fromiter(map(xxh3_64_intdigest, map(str.encode, words)), np.uint64, len(words))


def runs_of(numbers: Any, length: int) -> Any:
    """A number of 64 bits for each run of ``length`` words, by where it begins; empty if there are fewer words."""
    import numpy as np

    count = max(0, len(numbers) - length + 1)
    runs = np.zeros(count, np.uint64)
    for offset in range(length):
        runs *= np.uint64(_MULTIPLIER)
        runs += numbers[offset : offset + count]
    return runs


def script_share(text: str, scripts: tuple[str, ...]) -> float:
    """Share of a text's letters and marks that belong to one of the scripts; 0 if it has none."""
    patterns = _patterns()
    letters = sum(map(len, patterns["letters"].findall(text)))
    return sum(map(len, _script_pattern(scripts).findall(text))) / letters if letters else 0.0


def is_script(name: str) -> bool:
    """Whether Unicode has a script of this name, as the ``regex`` package knows it."""
    import regex

    try:
        return name.isalpha() and regex.compile(rf"\p{{Script={name}}}") is not None
    except regex.error:
        return False


def band_rows(similarity: float) -> int:
    """How many numbers of a signature make a band: as many as possible, so that few others meet in one, such that two
    documents of this similarity meet with probability ``BAND_RECALL``."""
    for rows in range(PERMUTATIONS, 1, -1):
        if 1 - (1 - similarity**rows) ** (PERMUTATIONS // rows) >= BAND_RECALL:
            return rows
    return 1


def similarity(one: bytes, other: bytes) -> float:
    """Estimated Jaccard similarity of the documents behind two signatures: the share of equal numbers."""
    import numpy as np

    return float(np.mean(np.frombuffer(one, np.uint32) == np.frombuffer(other, np.uint32)))


def _script_fault(analysis: Analysis, text: str) -> tuple[str | None, str]:
    if analysis.scripts is None:
        return None, ""
    share = script_share(text, analysis.scripts)
    return ("script", f"{share:.2f}") if share < analysis.script_share else (None, "")


def _overlap(runs: Any, test_runs: Any) -> int | None:
    """Where the first run begins that is one of the test texts'."""
    import numpy as np

    if not len(runs) or not len(test_runs):
        return None
    places = np.searchsorted(test_runs, runs)
    places[places == len(test_runs)] = 0
    found = np.flatnonzero(test_runs[places] == runs)
    return int(found[0]) if len(found) else None


def _signatures(sets: list[Any]) -> Any:
    """Signatures ``[texts, PERMUTATIONS]`` of sets of numbers, which may repeat; no set is empty."""
    import numpy as np
    from rensa import RMinHash

    if not sets:
        return []
    offsets = np.cumsum([0, *map(len, sets)], dtype=np.uint64)
    flat = np.concatenate(sets)
    rows = RMinHash.digest_matrix_from_flat_token_hashes(flat, offsets, num_perm=PERMUTATIONS, seed=0).to_rows()
    return np.array(rows, dtype=np.uint32)


def _bands(signature: Any, similar: float) -> tuple[int, ...]:
    from xxhash import xxh3_64_intdigest

    rows = _band_rows(similar)
    keys = (
        xxh3_64_intdigest(signature[band * rows : (band + 1) * rows].tobytes(), seed=band)
        for band in range(PERMUTATIONS // rows)
    )
    return tuple(key - 2**64 if key >= 2**63 else key for key in keys)


_band_rows = cache(band_rows)


@cache
def _patterns() -> dict[str, Any]:
    import regex

    # Joiners are spelling within words of Bengali and others; `\w` of the standard module breaks words at vowel signs.
    return {"word": regex.compile(r"[\p{L}\p{M}\p{N}\u200c\u200d]+"), "letters": regex.compile(r"[\p{L}\p{M}]+")}


@cache
def _script_pattern(scripts: tuple[str, ...]) -> Any:
    import regex

    named = "".join(rf"\p{{Script={script}}}" for script in scripts)
    return regex.compile(rf"[[{named}]&&[\p{{L}}\p{{M}}]]+", regex.V1)
