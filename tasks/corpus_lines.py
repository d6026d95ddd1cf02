"""The lines of the user's text files, which may be compressed, damaged, in another encoding, or one endless line."""

from __future__ import annotations

import gzip
import io
import lzma
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, cast

from tasks.contract import UserError
from tasks.user_files import COMPRESSIONS

MEGABYTE = 1_000_000

DAMAGED = (EOFError, zlib.error, lzma.LZMAError, OSError)
"""What reading a compressed file raises if it is damaged or cut off."""

BUFFER = 1 << 18
"""Bytes that are decompressed at once."""


def is_compressed(path: Path) -> bool:
    """Whether the name says that another format is inside."""
    return path.suffix.lower() in COMPRESSIONS


def decompressed(raw: BinaryIO, path: Path, opened: ExitStack) -> BinaryIO:
    """What is inside a file, by its name; the file itself if that is not compressed.

    Args:
        raw: the open file.
        path: its name.
        opened: closes what is opened here.
    """
    if not is_compressed(path):
        return raw
    plain = _UNPACKED[path.suffix.lower()](raw)
    return cast(BinaryIO, opened.enter_context(io.BufferedReader(plain, BUFFER)))


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
    """The lines of a stream as text. One that is none raises :class:`UserError`, and the next call goes on after it;
    what breaks the stream itself ends it.

    Args:
        stream: bytes.
        name: the file's, for messages.
        longest: most bytes of a line. No more of it is held.
    """

    def __init__(self, stream: BinaryIO, name: str, longest: int) -> None:
        self.name = name
        self.number = 0
        self._stream = stream
        self._longest = longest
        self._offset = 0
        self._broken = False

    @property
    def place(self) -> str:
        """File and number of the line that came last."""
        return f"{self.name}:{self.number}"

    def __iter__(self) -> Lines:
        return self

    def __next__(self) -> str:
        line = b"" if self._broken else self._read(self._longest + 1)
        if not line:
            raise StopIteration
        self.number += 1
        offset, self._offset = self._offset, self._offset + len(line)
        if len(line) > self._longest and not line.endswith(b"\n"):
            while not line.endswith(b"\n") and (line := self._read(BUFFER)):
                self._offset += len(line)
            raise UserError(f"{self.place}: {too_long(self._offset - offset, self._longest)}")
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{self.place}: not UTF-8: byte 0x{line[error.start]:02x} at offset {offset + error.start}; "
                "convert the file to UTF-8"
            ) from None
        if "\0" in text:
            at = offset + line.index(b"\0")
            raise UserError(f"{self.place}: a NUL byte at offset {at}; convert the file to UTF-8, or mend the line")
        return text.removeprefix("\ufeff") if self.number == 1 else text

    def _read(self, size: int) -> bytes:
        try:
            return self._stream.readline(size)
        except DAMAGED as error:
            self._broken = True
            raise UserError(
                f"{self.name}, after line {self.number}: the file is damaged or cut off ({error}); copy it again"
            ) from None


def too_long(size: int, longest: int) -> str:
    """What is said of a document or line of ``size`` bytes; ``longest`` is the limit that it exceeds."""
    return (
        f"{size / MEGABYTE:.4g} MB in one document, more than {longest / MEGABYTE:.4g}; split it (a text file by "
        "`documents: line` or `blank-line`), or raise corpus.max_document_mb"
    )
