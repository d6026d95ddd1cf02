"""The lines of the user's text files, which may be compressed, damaged, in another encoding, or one endless line."""

from __future__ import annotations

import codecs
import gzip
import io
import lzma
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

from tasks.contract import UserError
from tasks.user_files import COMPRESSIONS

MEGABYTE = 1_000_000

DAMAGED = (EOFError, zlib.error, lzma.LZMAError, OSError)
"""What reading a compressed file raises if it is damaged or cut off."""

BUFFER = 1 << 18
"""Bytes that are decompressed, or of a line read, at once."""

_ENDS = (b"\n", b"\r")

_OTHER_FILES = {
    b"\x1f\x8b": "packed by gzip; let its name end in .gz",
    b"\xfd7zXZ\0": "packed by xz; let its name end in .xz",
    b"\x28\xb5\x2f\xfd": "packed by zstd; let its name end in .zst",
    codecs.BOM_UTF32_LE: "UTF-32, as its byte order mark says; convert the file to UTF-8",
    codecs.BOM_UTF16_LE: "UTF-16, as its byte order mark says; convert the file to UTF-8",
    codecs.BOM_UTF16_BE: "UTF-16, as its byte order mark says; convert the file to UTF-8",
    codecs.BOM_UTF32_BE: "UTF-32, as its byte order mark says; convert the file to UTF-8",
}
"""What a file that is no UTF-8 is by its first bytes, and what to do with it."""


def is_compressed(path: Path) -> bool:
    """Whether the name says that another format is inside."""
    return path.suffix.lower() in COMPRESSIONS


def decompressed(raw: io.BufferedReader, path: Path, opened: ExitStack) -> io.BufferedReader:
    """What is inside a file, by its name; the file itself if that is not compressed.

    Args:
        raw: the open file.
        path: its name.
        opened: closes what is opened here.
    """
    if not is_compressed(path):
        return raw
    plain = _UNPACKED[path.suffix.lower()](raw)
    return opened.enter_context(io.BufferedReader(plain, BUFFER))


class _Xz(io.RawIOBase):
    """xz streams one behind the other. ``lzma.LZMAFile`` takes a damaged one for the end and says nothing."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._stream = lzma.LZMADecompressor()

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        plain = b""
        while not plain:
            packed = b""
            if self._stream.eof:
                packed = self._stream.unused_data.lstrip(b"\0")  # what pads a stream
                while not packed:
                    read = self._raw.read(BUFFER)
                    if not read:
                        return 0
                    packed = read.lstrip(b"\0")
                self._stream = lzma.LZMADecompressor()
            elif self._stream.needs_input and not (packed := self._raw.read(BUFFER)):
                raise EOFError("Compressed file ended before the end-of-stream marker was reached")
            plain = self._stream.decompress(packed, len(target))
        target[: len(plain)] = plain
        return len(plain)


def _zstandard(raw: BinaryIO) -> Any:
    import pyarrow

    return pyarrow.CompressedInputStream(pyarrow.PythonFile(raw, "r"), "zstd")


_UNPACKED: dict[str, Callable[[BinaryIO], Any]] = {
    ".gz": lambda raw: gzip.GzipFile(fileobj=raw),
    ".xz": lambda raw: _Xz(raw),
    ".zst": _zstandard,
}
assert set(_UNPACKED) == set(COMPRESSIONS)


class Lines:
    """The lines of a stream as text, with their ends: ``\\n``, ``\\r\\n`` or, as on old Macintoshes, ``\\r``. One that
    is no text raises :class:`UserError`, and the next call goes on after it; what breaks the stream itself ends it.

    Args:
        stream: bytes.
        name: the file's, for messages.
        longest: most bytes of a line without its end. Of a longer one, one more piece is held.

    Attributes:
        number: of the line that came last, from 1 on.
        broken: whether the stream ended before its end.
        refused: is given the bytes of a line that raises, in pieces, before it does.
    """

    def __init__(self, stream: io.BufferedReader, name: str, longest: int) -> None:
        self.name = name
        self.number = 0
        self.broken = False
        self.refused: Callable[[bytes], None] = lambda piece: None
        self._stream = stream
        self._longest = longest
        self._offset = 0
        self._ahead: list[bytes] = []

    @property
    def place(self) -> str:
        """File and number of the line that came last."""
        return f"{self.name}:{self.number}"

    def __iter__(self) -> Lines:
        return self

    def __next__(self) -> str:
        line = self._piece()
        if not line:
            raise StopIteration
        if len(line) > self._longest or not line.endswith(_ENDS):
            line = self._whole(line)
        self.number += 1
        offset, self._offset = self._offset, self._offset + len(line)
        try:
            text = line.decode("utf-8")
            mend = "convert the file to UTF-8, or mend the line"
            problem = f"a NUL byte at offset {offset + line.index(0)}; {mend}" if "\0" in text else ""
        except UnicodeDecodeError as error:
            at = f"byte 0x{line[error.start]:02x} at offset {offset + error.start}"
            problem = f"not UTF-8: {at}; convert the file to UTF-8"
        if problem:
            if self.number == 1:
                problem = next((told for begins, told in _OTHER_FILES.items() if line.startswith(begins)), problem)
            self.refused(line)
            raise UserError(f"{self.place}: {problem}")
        return text.removeprefix("\ufeff") if self.number == 1 else text

    def _whole(self, beginning: bytes) -> bytes:
        """The line that begins so; :class:`UserError` for one that is too long."""
        pieces, size = [beginning], len(beginning)
        while not pieces[-1].endswith(_ENDS) and size <= self._longest and (piece := self._piece()):
            pieces.append(piece)
            size += len(piece)
        line = b"".join(pieces)
        if len(line.rstrip(b"\r\n")) <= self._longest:
            return line
        self.refused(line)
        while not line.endswith(_ENDS) and (line := self._piece()):
            size += len(line)
            self.refused(line)
        self.number += 1
        self._offset += size
        raise UserError(f"{self.place}: {too_long(size, self._longest)}")

    def _piece(self) -> bytes:
        """The next line, or part of one that has more than ``BUFFER`` bytes; nothing at the end."""
        if not self._ahead:
            read = self._read()
            if b"\r" not in read:
                return read
            self._ahead = read.splitlines(keepends=True)[::-1]
        return self._ahead.pop()

    def _read(self) -> bytes:
        if self.broken:
            return b""
        try:
            read = self._stream.readline(BUFFER)
            if read.endswith(b"\r") and self._stream.peek(1).startswith(b"\n"):  # cut between the two
                read += self._stream.read(1)
            return read
        except DAMAGED as error:
            self.broken = True
            raise UserError(
                f"{self.name}, after line {self.number}: the file is damaged or cut off ({error}); copy it again"
            ) from None


def too_long(size: int, longest: int) -> str:
    """What is said of a document or line of ``size`` bytes; ``longest`` is the limit that it exceeds."""
    return (
        f"{size / MEGABYTE:.4g} MB in one document, more than {longest / MEGABYTE:.4g}; split it (a text file by "
        "`documents: line` or `blank-line`), or raise corpus.max_document_mb"
    )
