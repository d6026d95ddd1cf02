import sys
from pathlib import Path

import pytest

from eval.conll import read_conll
from tasks.contract import UserError

sys.path.insert(0, str(Path(__file__).parent))
from labelled_files import SHARED, WIKIANN, write

shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the real data are not here")


def test_conll_dialects_of_one_file_read_alike(tmp_path):
    wanted = ([["ঢাকা", "শহর"], ["#", "রবি"]], [["B-LOC", "O"], ["O", "B-PER"]])
    plain = "ঢাকা\tB-LOC\nশহর\tO\n\n#\tO\nরবি\tB-PER\n"
    dialects = {
        "plain": plain,
        "spaces": plain.replace("\t", " "),
        "windows": "\ufeff" + plain.replace("\n", "\r\n"),
        "no final newline": plain.rstrip("\n"),
        "blank lines": "\n\n" + plain.replace("\n\n", "\n \n\n"),
        "comments": "# id = 1\n#newdoc\n" + plain.replace("\n\n", "\n\n# text = রবি B-PER\n"),
        "docstart": "-DOCSTART- -X- O O\n\n" + plain,
        "language prefix": plain.replace("ঢাকা", "bn:ঢাকা")
        .replace("শহর", "bn:শহর")
        .replace("#", "bn:#")
        .replace("রবি", "bn:রবি"),
    }
    for name, text in dialects.items():
        assert read_conll(write(tmp_path / "a.conll", text)) == wanted, name
    for more in range(1, 4):  # 3 to 5 columns, the word first and the tag last
        wide = plain.replace("\t", "\t_" * more + "\t")
        assert read_conll(write(tmp_path / "a.conll", wide)) == wanted
        assert read_conll(write(tmp_path / "a.conll", wide.replace("\t", " "))) == wanted
    columns = "1\tঢাকা\tB-LOC\t-\n2\tশহর\tO\t-\n\n1\t#\tO\t-\n2\tরবি\tB-PER\t-\n"
    assert read_conll(write(tmp_path / "b.conll", columns), token_column=1, tag_column=2) == wanted


def test_a_prefix_that_some_words_lack_is_kept(tmp_path):
    words, _ = read_conll(write(tmp_path / "a.conll", "bn:ক O\nhttp://x O\n"))
    assert words == [["bn:ক", "http://x"]]


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("ক\tO\nখ\n", 2, "has no tag"),
        ("ক\tO\n\nখ\tPER\n", 3, "tag 'PER' is not IOB2, IOB1 or BIOES"),
        ("ক\tO\nখ\tB-GPE\n", 2, "unknown label 'B-GPE'"),
        ("ক\tO\n\tO\n", 2, "word is empty"),
        (b"\xe0\xa6\x95\tO\n\xff\tO\n", 2, "not UTF-8"),
        ("ক\tO\n#tag\n", 2, "has no tag"),
        ("ক NNP B-NP B-PER\nখ NN I-NP\n", 2, "3 columns where the file's first word has 4"),
        ("ক\tO\nখ\tO\t\n", 2, "3 columns where the file's first word has 2"),
        ("ক\tO\nখ\tS-GPE\n", 2, "unknown label 'B-GPE'"),
        ("ক\tO\nখ\tE-PERS\n", 2, "unknown label 'I-PERS'; did you mean 'I-PER'?"),
    ],
)
def test_bad_conll_names_file_and_line(tmp_path, text, line, says):
    path = write(tmp_path / "bad.conll", text)
    with pytest.raises(UserError) as error:
        read_conll(path, labels=WIKIANN)
    assert str(error.value).startswith(f"{path}:{line}: ")
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_too_few_columns(tmp_path):
    path = write(tmp_path / "a.conll", "ক\tO\n")
    with pytest.raises(UserError, match=r"a\.conll:1: 2 columns are too few"):
        read_conll(path, token_column=1, tag_column=2)
