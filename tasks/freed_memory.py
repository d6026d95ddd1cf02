"""What becomes of freed memory: kept in the process while a model trains on the CPU, or given back at once.

Both through the C library, on Linux with glibc; elsewhere nothing happens. By itself it gives memory at the heap's end
back to the system when a step frees its tensors, and asks for it anew in the next one, where the system has to clear
it page by page. Only tensors of 32 MiB and more are left out: they are given back one by one, whatever is set here. To
keep those too would be possible, but glibc before 2.38 fits an aligned tensor, as all of torch's are, hardly ever into
what one of the same size has left (its bug 14581): memory grew by 30 MB a step.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
"""Numbers of glibc's parameters (malloc.h): free memory at the heap's end above which it is given back; how much more
than needed the heap grows by; size from which memory comes from the system by itself."""

NEVER = 2**31 - 1

GROWTH = 64 * 2**20
"""TOP_PAD while memory is kept: the heap grows seldom."""

LARGEST = 32 * 2**20
"""The largest MMAP_THRESHOLD that glibc takes, and what it raises its own to once memory of that size was freed; twice
that is then its TRIM_THRESHOLD."""

USUAL_GROWTH = 128 * 2**10


@contextlib.contextmanager
def kept_memory() -> Iterator[None]:
    """Freed memory stays with the process while the context is open; then it is given back."""
    mallopt = _glibc("mallopt")
    if mallopt is None:
        yield
        return
    mallopt(MMAP_THRESHOLD, LARGEST)
    mallopt(TRIM_THRESHOLD, NEVER)
    mallopt(TOP_PAD, GROWTH)
    try:
        yield
    finally:
        mallopt(TRIM_THRESHOLD, 2 * LARGEST)
        mallopt(TOP_PAD, USUAL_GROWTH)
        give_back()


def give_back() -> None:
    """Give all memory that is free back to the system, also between pieces that are in use."""
    trim = _glibc("malloc_trim")
    if trim is not None:
        trim(0)


def _glibc(name: str) -> ctypes._NamedFuncPointer | None:
    if not sys.platform.startswith("linux"):
        return None
    function: ctypes._NamedFuncPointer | None = getattr(ctypes.CDLL(None), name, None)
    return function
