"""The user's files: every format and compression, whatever can be wrong, and what is read all the same."""

import errno
import gzip
import json
import lzma
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from corpus_runs import COMPRESSED, PACKED, read


def lines(*texts):
    return "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts).encode()


@pytest.mark.parametrize("ending", PACKED)
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv"])
def test_every_format_in_every_packing(tmp_path, name, ending):
    content = {
        "a.txt": "ক\nখ\n".encode(),
        "a.jsonl": lines("ক", "খ"),
        "a.csv": "text,n\nক,1\nখ,2\n".encode(),
    }[name]
    path = tmp_path / f"{name}{ending.upper()}"
    path.write_bytes(PACKED[ending](content))
    assert read(path) == ["ক", "খ"]
    path.write_bytes(PACKED[ending](content[: len(content) // 2]) + PACKED[ending](content[len(content) // 2 :]))
    assert read(path) == ["ক", "খ"], "a file of several parts, as parallel compressors write it"


@pytest.mark.parametrize("ending", COMPRESSED)
def test_a_packed_parquet_file(tmp_path, ending):
    pyarrow.parquet.write_table(pyarrow.table({"text": ["ক", "খ"]}), tmp_path / "a.parquet")
    path = tmp_path / f"a.parquet{ending}"
    packed = PACKED[ending]((tmp_path / "a.parquet").read_bytes())
    path.write_bytes(packed)
    assert read(path) == ["ক", "খ"]
    path.write_bytes(packed[:-40])
    (problem,) = read(path)
    assert problem.startswith("! : not a Parquet file, or damaged")


@pytest.mark.parametrize("ending", COMPRESSED)
def test_several_compressed_streams_are_one_file_and_none_is_lost(tmp_path, ending):
    path = tmp_path / f"a.txt{ending}"
    first, second = PACKED[ending](b"one\ntwo\n"), PACKED[ending](b"three\n")
    path.write_bytes(first + second)
    assert read(path) == ["one", "two", "three"]
    for damaged in (b"x" + second[1:], second[:-1], b"rubbish"):
        path.write_bytes(first + damaged)
        *_, problem = read(path)
        assert ": the file is damaged or cut off" in problem
    path.write_bytes(b"")
    assert read(path) == ["! : 0 bytes, which is no compressed file; copy it again"]


def test_padded_xz_streams(tmp_path):
    path = tmp_path / "a.txt.xz"
    path.write_bytes(lzma.compress(b"one\n") + b"\0" * 8 + lzma.compress(b"two\n") + b"\0" * 400_000)
    assert read(path) == ["one", "two"]


@pytest.mark.parametrize("ending", COMPRESSED)
def test_of_a_file_that_was_cut_off_the_beginning_is_read(tmp_path, ending):
    path = tmp_path / f"a.jsonl{ending}"
    texts = [str(number) * 200 for number in range(20_000)]
    path.write_bytes(PACKED[ending](lines(*texts))[:-200])
    *found, problem = read(path)
    assert len(found) > 100
    assert found == texts[: len(found)]
    assert problem.startswith(f"! , after line {len(found)}: the file is damaged or cut off")
    path.write_bytes(b"not packed at all")
    (problem,) = read(path)
    assert "after line 0: the file is damaged" in problem


class TestLines:
    @pytest.mark.parametrize("ending", PACKED)
    def test_bad_lines_stand_between_good_ones(self, tmp_path, ending):
        path = tmp_path / f"a.txt{ending}"
        path.write_bytes(PACKED[ending]("এক\n".encode() + b"caf\xe9\nnul\0\n" + b"x" * 10_001 + b"\n" + b"y" * 10_000))
        assert read(path) == [
            "এক",
            "! :2: not UTF-8: byte 0xe9 at offset 10; convert the file to UTF-8",
            "! :3: a NUL byte at offset 15; convert the file to UTF-8, or mend the line",
            "! :4: 0.01 MB in one document, more than 0.01; split it (a text file by `documents: line` or "
            "`blank-line`), or raise corpus.max_document_mb",
            "y" * 10_000,
        ]

    def test_an_endless_line_is_passed_by_without_being_held(self, tmp_path):
        import tracemalloc

        path = tmp_path / "a.txt"
        with path.open("wb") as file:
            for _ in range(50):
                file.write(b"x" * 1_000_000)
            file.write(b"\nlast")
        tracemalloc.start()
        problem, last = read(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert problem.startswith("! :1: 50 MB in one document")
        assert last == "last"
        assert peak < 2_000_000

    def test_blocks_and_files_are_spoilt_as_a_whole(self, tmp_path):
        path = tmp_path / "a.txt"
        path.write_bytes(
            "ক\nখ\n\n".encode() + b"good\nb\xe9d\ngood\n\n\n" + b"x" * 6_000 + b"\n" + b"y" * 6_000 + b"\n\nz"
        )
        first, second, third, last = read(path, documents="blank-line")
        assert (first, last) == ("ক\nখ", "z")
        assert second.startswith("! :5: not UTF-8")
        assert third.startswith("! :9: 0.012 MB in one document")
        (problem,) = read(path, documents="file")
        assert problem.startswith("! :5: not UTF-8")
        path.write_bytes(b"")
        assert read(path, documents="file") == [""]

    def test_utf16_is_told_by_its_mark_or_by_its_nul_bytes(self, tmp_path):
        path = tmp_path / "a.txt"
        path.write_bytes("text".encode("utf-16-le"))
        assert read(path, documents="file") == [
            "! :1: a NUL byte at offset 1; convert the file to UTF-8, or mend the line"
        ]
        for encoding in ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"):
            path.write_bytes("\ufeffএক\n".encode(encoding))
            says = f"! :1: {encoding[:6].upper()}, as its byte order mark says; convert the file to UTF-8"
            assert read(path, documents="file") == [says]

    @pytest.mark.parametrize("ending", COMPRESSED)
    def test_a_packed_file_without_its_ending_is_told(self, tmp_path, ending):
        path = tmp_path / "a.txt"
        path.write_bytes(PACKED[ending]("এক\n".encode() * 100))
        (problem, *_) = read(path)
        assert problem.startswith("! :1: packed by ")
        assert problem.endswith(f"let its name end in {ending}")

    @pytest.mark.parametrize("ending", PACKED)
    def test_lines_end_as_python_says(self, tmp_path, ending, monkeypatch):
        path = tmp_path / f"a.txt{ending}"
        path.write_bytes(PACKED[ending](b"one\rtwo\r\nb\xe9d\rthree\nfour\r\r\nfive\r"))
        expected = [
            "one",
            "two",
            "! :3: not UTF-8: byte 0xe9 at offset 10; convert the file to UTF-8",
            "three",
            "four",
        ]
        for buffer in (1 << 18, *range(1, 40)):  # wherever what is read at once ends
            monkeypatch.setattr("tasks.corpus_lines.BUFFER", buffer)
            assert read(path) == [*expected, "", "five"]

    def test_ends_within_a_document_are_newlines(self, tmp_path):
        path = tmp_path / "a.txt"
        for end in ("\n", "\r\n", "\r"):
            path.write_bytes(f"one{end}two{end}{end}three".encode())
            assert read(path, documents="file") == ["one\ntwo\n\nthree"]
            assert read(path, documents="blank-line") == ["one\ntwo", "three"]

    def test_the_longest_line_may_have_any_end(self, tmp_path, monkeypatch):
        path = tmp_path / "a.txt"
        for buffer in (1 << 18, 10, 9, 7):
            monkeypatch.setattr("tasks.corpus_lines.BUFFER", buffer)
            for end in ("\n", "\r\n", "\r", ""):
                path.write_bytes(b"x" * 10 + end.encode() + b"y" * 11 + end.encode())
                told = [item.partition(" in one")[0] for item in read(path, longest=10)]
                size = 21 if not end else 11 + len(end)
                assert told == ["x" * 10] * bool(end) + [f"! :{1 + bool(end)}: {size / 1e6:.4g} MB"]


def test_jsonl(tmp_path):
    path = tmp_path / "a.jsonl"
    bad = [b'{"text": "x"', b'{"body": "x"}', b'{"text": "\\u0000"}', b'{"text": null}', b'{"text": "\xff"}', b"\0"]
    content = lines("ক") + b"\n" + b"".join(line + b"\n" + lines(str(number)) for number, line in enumerate(bad))
    path.write_bytes(content + lines("x" * 10_001, "last"))
    first, *pairs, long, last = read(path)
    assert (first, last) == ("ক", "last")
    assert pairs[1::2] == [str(number) for number in range(len(bad))]
    for number, (told, says) in enumerate(
        zip(
            pairs[::2],
            [
                "not JSON",
                "no field 'text'; there are body",
                "a NUL character",
                "empty (null)",
                "not UTF-8",
                "a NUL byte",
            ],
            strict=True,
        )
    ):
        assert told.startswith(f"! :{3 + 2 * number}: ")
        assert says in told
    assert long.startswith("! :15: 0.01")


def test_jsonl_files_put_one_behind_the_other(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join("\ufeff".encode() + lines(text) for text in ("ক", "খ")))
    assert read(path) == ["ক", "খ"]


def test_names_of_fields_are_told_so_that_they_are_seen(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(rb'{"\ud800": 1, " text": 2, "a\nb": 3}' + b"\n")
    told = r"'\ud800', ' text', 'a\nb'"
    assert read(path) == [f"! :1: no field 'text'; there are {told}: set text_field"]


def test_escapes_do_not_make_a_line_too_long(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "ক" * 3_333}) + "\n")  # 9,999 bytes, escaped 20,000
    assert read(path) == ["ক" * 3_333]


def test_a_full_disk_is_no_damage_of_the_file(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet.gz"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["one"]}), tmp_path / "a.parquet")
    path.write_bytes(gzip.compress((tmp_path / "a.parquet").read_bytes()))

    def full(source, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tasks.corpus_files.shutil.copyfileobj", full)
    with pytest.raises(OSError, match="No space left"):
        read(path)


def test_parquet_goes_on_after_bad_rows(tmp_path):
    path = tmp_path / "a.parquet"
    values = [b"one", b"\xff", b"nul\0", None, b"x" * 10_001, b"last"]
    offsets = pyarrow.array(values, pyarrow.binary())
    column = pyarrow.Array.from_buffers(pyarrow.string(), len(values), offsets.buffers(), null_count=1)
    pyarrow.parquet.write_table(pyarrow.table({"text": column, "n": range(6)}), path)
    assert [item.partition(";")[0] for item in read(path)] == [
        "one",
        "! , row 2: text that is not UTF-8",
        "! , row 3: a NUL character in the field 'text'",
        "! , row 4: the field 'text' is empty (null)",
        "! , row 5: 0.01 MB in one document, more than 0.01",
        "last",
    ]
    says = "! , row 1: the field 'n' is not text but int; set text_field, or leave such rows out by on_error: skip"
    assert read(path, text_field="n")[0] == says
    assert read(path, text_field="body") == [
        "!: no field 'body'; there are text, n: set text_field".replace("!:", "! :")
    ]


def test_of_a_damaged_parquet_file_the_good_row_groups_are_read(tmp_path):
    path = tmp_path / "a.parquet"
    texts = [str(number) * 50 for number in range(3_000)]
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), path, row_group_size=1_000, use_dictionary=False)
    whole = path.read_bytes()
    start = pyarrow.parquet.read_metadata(path).row_group(1).column(0).data_page_offset
    path.write_bytes(whole[:start] + b"\xff" * 40 + whole[start + 40 :])
    *found, problem = read(path)
    assert found == texts[:1_000]
    assert problem.startswith("! , after row 1000: not a Parquet file, or damaged")
