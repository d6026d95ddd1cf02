"""CSV files: whatever is wrong with a row, the others are read as they are, and no part of it is taken for one."""

import csv
import io
import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from corpus_runs import PACKED, files, lines_of, read, run, settings

UTF8 = b"b\xe9d"
NUL = b"nul\0"
LONG_LINE = b"x" * 1_100_000
LONG_FIELD = b"x" * 11_000
PARTS = 2_000 * (b"x" * 9 + b"\n")
"""A field that is too long by its many lines."""


@pytest.mark.parametrize("ending", PACKED)
@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (UTF8, "! :5: not UTF-8: byte 0xe9 at offset 29; convert the file to UTF-8 (in the row of lines 3 to 7)"),
        (
            NUL,
            "! :5: a NUL byte at offset 31; convert the file to UTF-8, or mend the line (in the row of lines 3 to 7)",
        ),
        (
            LONG_LINE,
            "! :5: 1.1 MB in one document, more than 1.02; split it (a text file by `documents: line` or "
            "`blank-line`), or raise corpus.max_document_mb (in the row of lines 3 to 7)",
        ),
        (
            LONG_FIELD,
            "! :3: a field of more than 10,000 characters (in the row of lines 3 to 7); check the quotes, or raise "
            "corpus.max_document_mb",
        ),
        (
            PARTS,
            "! :3: a field of more than 10,000 characters (in the row of lines 3 to 2007); check the quotes, or raise "
            "corpus.max_document_mb",
        ),
    ],
)
def test_a_row_with_a_bad_line_inside_quotes_is_left_out_as_one(tmp_path, ending, bad, problem):
    path = tmp_path / f"a.csv{ending}"
    row = b'2,"one\n"",\n' + bad + b'\n""two"",3\nend"\n'
    path.write_bytes(PACKED[ending](b"id,text\n1,before\n" + row + b'3,after\n4,"two\nlines"\n'))
    assert read(path) == ["before", problem, "after", "two\nlines"]


@pytest.mark.parametrize("bad", [UTF8, NUL, LONG_LINE, LONG_FIELD, PARTS])
class TestPlacesOfABadLine:
    def test_several_in_one_row(self, tmp_path, bad):
        path = tmp_path / "a.csv"
        row = b'2,"' + bad + b"\nkept\n" + UTF8 + b' ""\n' + NUL + b"\n" + bad + b'","c\n' + UTF8 + b'"\n'
        path.write_bytes(b"id,text,more\n1,before,\n" + row + b"3,after,\n")
        before, problem, after = read(path)
        assert (before, after) == ("before", "after")
        last = 3 + row.count(b"\n") - 1
        assert f"(in the row of lines 3 to {last})" in problem

    def test_in_the_first_and_in_the_last_line(self, tmp_path, bad):
        path = tmp_path / "a.csv"
        for row in (
            b'2,"' + bad + b'\nrest"\n',
            b'2,"begins\n' + bad + b'"\n',
            b'"' + bad + b'\n",2\n',
            bad.replace(b"\n", b"") + b",2\n",
        ):
            path.write_bytes(b"id,text\n1,before\n" + row + b"3,after\n")
            before, problem, after = read(path)
            assert (before, after) == ("before", "after")
            assert problem.startswith("! :")

    def test_a_quote_that_is_never_closed(self, tmp_path, bad):
        path = tmp_path / "a.csv"
        content = b'id,text\n1,before\n2,"open\n' + bad + b"\n3,within\n" + UTF8
        path.write_bytes(content)
        before, problem = read(path)
        assert before == "before"
        last = content.count(b"\n") + 1
        assert f"(in the row of lines 3 to {last})" in problem

    def test_behind_quotes_that_are_wrong(self, tmp_path, bad):
        """As everywhere, a row with wrong quotes ends with the line in which they are."""
        path = tmp_path / "a.csv"
        bad = bad.replace(b"\n", b"")
        path.write_bytes(b'id,text\n1,before\n2,"one\n" ' + bad + b' "\n3,after\n')
        before, problem, after = read(path)
        assert (before, after) == ("before", "after")
        assert problem.startswith("! :")

    def test_of_the_columns_names(self, tmp_path, bad):
        path = tmp_path / "a.csv"
        path.write_bytes(b'id,"' + bad + b'\n"\n1,x\n')
        (problem,) = read(path)
        assert problem.startswith("! :1: ")


def test_damage_within_a_bad_row_is_told(tmp_path):
    path = tmp_path / "a.csv.gz"
    rows = b"".join(b"%d line\n" % number for number in range(50_000))
    path.write_bytes(PACKED[".gz"](b'text\nbefore\n"' + UTF8 + b"\n" + rows)[:-100])
    before, problem = read(path)
    assert before == "before"
    assert "not UTF-8" in problem
    assert "the file is damaged or cut off" in problem


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_whatever_line_is_bad_the_other_rows_stay(tmp_path, end):
    rng = random.Random(1)
    path = tmp_path / "a.csv"
    rows = [["".join(rng.choices('a",;\n ', k=rng.randrange(1, 15))) + str(n) for _ in range(3)] for n in range(40)]
    texts = [row[1].replace("\n", end).strip() for row in rows]
    for trial in range(150):
        place = rng.randrange(len(rows))
        bad = [list(row) for row in rows]
        column = rng.randrange(3)
        bad[place][column] = "".join(
            character + rng.choice(["", "\x00" if character in "a ;" else ""]) for character in bad[place][column]
        )
        written = io.StringIO()
        csv.writer(written, lineterminator="\n").writerows([["id", "text", "more"], *bad])
        path.write_bytes(written.getvalue().replace("\n", end).encode().replace(b"\0", rng.choice([b"\xff", b"\0"])))
        spoilt = "\0" in "".join(bad[place])
        found = read(path)
        if spoilt:
            assert found.pop(place).startswith("! :"), trial
        assert found == [text for number, text in enumerate(texts) if not spoilt or number != place], trial


def test_the_record_counts_the_row_once_and_says_where(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b'text\none\n"two\n' + UTF8 + b'\n,\n"\nthree\nfour\n')
    metrics, _ = run(settings(files(path), on_error="skip"), tmp_path / "out")
    assert metrics["documents"] == 3
    (source,) = metrics["sources"].values()
    assert source["unreadable_skipped"] == 1
    (problem,) = metrics["unreadable"]
    assert problem.startswith(f"{path}:4: not UTF-8")
    assert problem.endswith("(in the row of lines 3 to 6)")
    assert [line["problem"] for line in lines_of(tmp_path / "out")] == [problem]


def test_rows_end_as_lines_do(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b'id,text\r1,one\r2,"two\rlines"\r\n3,three\n')
    assert read(path) == ["one", "two\rlines", "three"]


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_another_separator_is_told(tmp_path, separator):
    path = tmp_path / "a.csv"
    path.write_text(f"id{separator}text\n1{separator}one, two\n")
    assert read(path) == [f"! :1: {separator!r} stands between the columns; write commas"]


def test_csv_goes_on_after_bad_rows(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(
        b'id,text\n1,one\n2,two,too many\n3,"quo"ted"\n4,"two\nlines"\n\n5\n6,b\xe9d\n7,'
        + b"x" * 11_000
        + b'\n8,"open'
    )
    assert [item.partition(";")[0] for item in read(path)] == [
        "one",
        "! :3: 3 columns instead of 2",
        "! :4: not CSV: ',' expected after '\"'",
        "two\nlines",
        "! :8: the field 'text' is empty (null)",
        "! :9: not UTF-8: byte 0xe9 at offset " + str(path.read_bytes().index(b"\xe9")),
        "! :10: a field of more than 10,000 characters",
        "! :11: not CSV: unexpected end of data",
    ]


def test_of_a_quote_that_is_not_closed_the_place_is_told(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('text\none\n"two\nthree\nfour\n')
    assert read(path) == [
        "one",
        "! :3: not CSV: unexpected end of data (in the row of lines 3 to 5); check the quotes",
    ]
    path.write_text('text,id\none,1\n"two\nthree",2,3\nfour,4\n')
    assert read(path) == ["one", "! :3: 3 columns instead of 2; quote the text", "four"]


def test_csv_without_the_column_is_one_unreadable_document(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id,body\n1,x\n2,y\n")
    assert read(path) == ["! :1: no field 'text'; there are id, body: set text_field"]
