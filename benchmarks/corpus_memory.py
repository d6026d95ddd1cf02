"""Peak memory and speed of the corpus stage on generated corpora of two sizes, with and without costly cleaning.

    python benchmarks/corpus_memory.py [--megabytes 100 500] [--folder DIR]

Each measurement is a process of its own: it reads one .jsonl.gz file of made-up documents of which a tenth are copies
and a tenth nearly so, and writes the corpus. Prints the peak of the stage's process and of its workers, each by the
operating system's count (ru_maxrss, which includes shared libraries), and the seconds.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CLEANING = {
    "exact duplicates": {},
    "all steps": {"near_duplicates": {}, "script": {"names": ["Bengali"]}, "decontamination": {}},
}


def generate(path: Path, megabytes: int) -> None:
    rng = random.Random(0)
    letters = [chr(code) for code in range(0x995, 0x9B0)]
    words = ["".join(rng.choices(letters, k=rng.randint(2, 9))) for _ in range(50_000)]
    left = megabytes * 1_000_000
    texts: list[str] = []
    with gzip.open(path, "wt", compresslevel=1, encoding="utf-8") as file:
        while left > 0:
            kind = rng.random()
            if texts and kind < 0.2:
                text = rng.choice(texts) + (" নতুন" if kind < 0.1 else "")
            else:
                text = " ".join(rng.choices(words, k=rng.randint(20, 400)))
            if len(texts) < 1_000:
                texts.append(text)
            left -= len(text.encode())
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")


def measure(source: str, cleaning: str, folder: str) -> None:
    import resource

    from tasks.contract import no_progress
    from tasks.corpus import STAGE, TEST_TEXTS

    settings = STAGE.settings.model_validate({"sources": [{"kind": "files", "paths": [source]}], **CLEANING[cleaning]})
    tests = Path(folder) / "tests"
    tests.mkdir(parents=True)
    (tests / "test.jsonl").write_text('{"text": "ক খ গ ঘ ঙ চ ছ জ ঝ"}\n')
    started = time.perf_counter()
    metrics = STAGE.run(settings, {TEST_TEXTS: tests} if settings.decontamination else {}, Path(folder), no_progress)
    seconds = time.perf_counter() - started
    own, workers = (
        resource.getrusage(who).ru_maxrss // 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    counts = metrics["sources"]["files"]
    read = sum(counts.values()) - counts["characters"]
    print(
        f"{cleaning:<17} peak {own:,} MiB, of its largest worker {workers:,} MiB; "
        f"{counts['documents']:,} of {read:,} documents stay, {metrics['bytes'] / 1e6:,.0f} MB; {seconds:.0f} s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[100, 500])
    parser.add_argument("--folder", help="where to write (default: a temporary folder)")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(*arguments.measure)
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for megabytes in arguments.megabytes:
            source = Path(folder) / f"{megabytes}.jsonl.gz"
            generate(source, megabytes)
            print(f"{megabytes} MB of text", flush=True)
            for cleaning in CLEANING:
                place = Path(folder) / f"{megabytes} {cleaning}"
                command = [sys.executable, __file__, "--measure", str(source), cleaning, str(place)]
                subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})


if __name__ == "__main__":
    main()
