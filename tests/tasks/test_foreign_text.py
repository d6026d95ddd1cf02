import pytest

from tasks.foreign_text import LONGEST, escaped, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("peer-0", "peer-0"),
        ("ক্\N{ZERO WIDTH JOINER}ষ সহজ", "ক্\N{ZERO WIDTH JOINER}ষ সহজ"),
        ("  two\nlines\tand\u2028more ", "two lines and more"),
        ("\x1b[2J\x07red", "[2Jred"),
        ("a\u202eb\u2066c\ud800d", "abcd"),
        ("a \x00 b", "a b"),
        ("<b>*|`", "<b>*|`"),
        ("", ""),
        (" \x00\N{ZERO WIDTH JOINER}\n", ""),
    ],
)
def test_what_cannot_be_printed_is_left_out(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown


def test_a_long_name_is_cut() -> None:
    assert printable("x" * LONGEST) == "x" * LONGEST
    cut = printable("x" * 38 + " " + "y" * 10_000)
    assert cut == "x" * 38 + "…"
    assert printable(cut) == cut


def test_escapes_keep_the_whole_text_on_one_line() -> None:
    assert escaped("\x1b[2Jred\nblue\u202e") == "\\x1b[2Jred\\nblue\\u202e"
    spelling = "ক্\N{ZERO WIDTH JOINER}ষ <b>" + "x" * 100
    assert escaped(spelling) == spelling
