from __future__ import annotations

import subprocess
import sys

import pytest

from tasks import freed_memory
from tasks.freed_memory import kept_memory

FAULTS = """
import ctypes, resource
from tasks.freed_memory import kept_memory

libc = ctypes.CDLL(None)
libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
libc.memset.argtypes, libc.memset.restype = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t], None
libc.free.argtypes, libc.free.restype = [ctypes.c_void_p], None

def faults():
    for _ in range(4):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        pieces = [libc.malloc(16 * 2**20) for _ in range(8)]
        for piece in pieces:
            libc.memset(piece, 1, 16 * 2**20)
        for piece in pieces:
            libc.free(piece)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

usual = faults()
with kept_memory():
    kept = faults()
print(usual, kept, faults())
"""
"""Page faults in which 128 MiB are filled, piece by piece, when that was done and freed before."""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc is Linux's")
def test_freed_memory_stays_while_the_context_is_open() -> None:
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    usual, kept, after = map(int, done.stdout.split())
    assert 4 * (kept + 1) < min(usual, after)


def test_where_there_is_no_such_library_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freed_memory.sys, "platform", "darwin")
    with kept_memory():
        pass
