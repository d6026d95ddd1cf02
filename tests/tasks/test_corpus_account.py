"""What is left out is counted and named."""

import sys
from pathlib import Path

from tasks.contract import no_progress
from tasks.corpus import STAGE

sys.path.insert(0, str(Path(__file__).parent))
from corpus_runs import (
    all_texts,
    counts,
    fails,
    files,
    lines_of,
    run,
    settings,
    texts,
    write_jsonl,
)


class TestLeftOut:
    """Every kind of document that is left out, in the record and in the file beside it."""

    def test_each_is_counted_and_named(self, tmp_path):
        long = " ".join(f"শব্দ{number}" for number in range(40))
        path = tmp_path / "a.jsonl"
        write_jsonl(
            path,
            [
                long,
                "",
                "only Latin letters here",
                f"{long} শেষ",
                long,
                "এক দুই তিন চার পাঁচ ছয় সাত আট নয়",
                "অন্য কথা",
            ],
        )
        path.write_text(path.read_text() + '{"text": \n')
        (tmp_path / "tests").mkdir()
        write_jsonl(tmp_path / "tests/test.jsonl", ["শূন্য এক দুই তিন চার পাঁচ ছয় সাত আট", "ছোট"])
        chosen = settings(
            files(path, name="a"),
            on_error="skip",
            script={"names": ["Bengali"]},
            decontamination={"words": 8},
            near_duplicates={},
        )
        folder = tmp_path / "out"
        metrics = STAGE.run(chosen, {"test-texts": tmp_path / "tests"}, folder, no_progress)
        problem = f"{path}:8: not JSON (Expecting value at column 1)"
        assert metrics["sources"] == {
            "a": counts(
                documents=2,
                characters=len(long) + len("অন্য কথা"),
                unreadable_skipped=1,
                empty_dropped=1,
                script_dropped=1,
                overlap_dropped=1,
                duplicates_dropped=1,
                near_duplicates_dropped=1,
            )
        }
        assert [line.partition(";")[0] for line in metrics["unreadable"]] == [problem]
        assert metrics["test_texts"] == {"compared": 1, "too_short": 1}
        left_out = lines_of(folder)
        (near,) = (line for line in left_out if line["fault"] == "near_duplicates")
        assert near.pop("similarity") >= 0.8
        assert left_out == [
            {"id": "a-1", "fault": "empty"},
            {"id": "a-2", "fault": "script", "share": 0.0, "begins": "only Latin letters here"},
            {"id": "a-3", "fault": "near_duplicates", "of": "a-0", "begins": f"{long} শেষ"[:200]},
            {"id": "a-4", "fault": "duplicates", "of": "a-0", "begins": long[:200]},
            {
                "id": "a-5",
                "fault": "overlap",
                "run": "এক দুই তিন চার পাঁচ ছয় সাত আট".replace("\u09df", "\u09af\u09bc"),
                "begins": "এক দুই তিন চার পাঁচ ছয় সাত আট নয়",
            },
            {"id": "a-7", "fault": "unreadable", "problem": metrics["unreadable"][0]},
        ]
        assert left_out == sorted(left_out, key=lambda line: line["id"])

    def test_nothing_else_is_left_out(self, tmp_path):
        # Real sentences that only look alike: a changed number is another document, and so is a short prefix.
        path = write_jsonl(tmp_path / "a.jsonl", [f"{text} {number}" for number, text in enumerate(texts(200, "বাক্য"))])
        metrics, rows = run(settings(files(path), near_duplicates={}), tmp_path / "out")
        assert metrics["documents"] == len(all_texts(rows)) == 200

    def test_the_record_lists_the_first_unreadable_ones_and_the_file_all(self, tmp_path):
        path = tmp_path / "a.jsonl"
        path.write_text('{"text": "ক"}\n{"text": "খ"}\n' + "{\n" * 50)
        metrics, _ = run(settings(files(path, name="a"), on_error="skip"), tmp_path / "out")
        assert metrics["sources"]["a"]["unreadable_skipped"] == 50
        assert [line.partition(": ")[0] for line in metrics["unreadable"]] == [f"{path}:{3 + n}" for n in range(20)]
        assert [line["id"] for line in lines_of(tmp_path / "out")] == [f"a-{2 + n}" for n in range(50)]

    def test_raise_names_the_first_one_even_if_a_later_piece_was_read(self, tmp_path, monkeypatch):
        monkeypatch.setattr("tasks.corpus_reading.PIECE_DOCUMENTS", 2)
        path = tmp_path / "a.jsonl"
        path.write_text('{"text": "ক"}\n' * 7 + "{\n" * 3)
        fails(settings(files(path)), tmp_path / "out", says=[f"{path}:8: not JSON"])

    def test_what_is_behind_the_limit_is_not_missed(self, tmp_path):
        path = tmp_path / "a.jsonl"
        path.write_text('{"text": "ক"}\n{"text": "খ"}\n' + "{\n")
        metrics, _ = run(settings(files(path), limit_documents=2), tmp_path / "out")
        assert metrics["documents"] == 2

    def test_too_few_are_left(self, tmp_path):
        path = tmp_path / "a.jsonl"
        path.write_text('{"text": "a"}\n{"text": "a"}\n{"body": "b"}\n')
        chosen = settings(files(path), on_error="skip")
        says = ["1 documents with text, 1 left out (unreadable_skipped), 1 left out (duplicates_dropped)", "'text'"]
        fails(chosen, tmp_path / "out", says=says)

    def test_the_limit_of_a_document(self, tmp_path):
        path = tmp_path / "a.txt"
        path.write_bytes(b"x" * 1_500_000 + b"\n\nshort\n\nother\n")
        chosen = settings(files(path, documents="blank-line"), max_document_mb=1)
        fails(chosen, tmp_path / "out", says=[f"{path}:1: 1.5 MB", "corpus.max_document_mb"])
        _, rows = run(chosen.model_copy(update={"on_error": "skip"}), tmp_path / "skip")
        assert sorted(all_texts(rows)) == ["other", "short"]
        _, rows = run(chosen.model_copy(update={"max_document_mb": 2}), tmp_path / "raised")
        assert sorted(map(len, all_texts(rows))) == [5, 5, 1_500_000]
