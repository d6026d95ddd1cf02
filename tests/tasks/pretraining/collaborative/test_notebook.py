"""The notebook for Colab and Kaggle is one, and joins where the coordinator is."""

import ast
import json

import pytest

from tasks.pretraining.collaborative.notebook import notebook, write

ADDRESSES = ("/ip4/203.0.113.7/tcp/31337/p2p/QmA", "/ip4/203.0.113.8/tcp/31337/p2p/QmB")
LIBRARIES = {"hivemind": "1.1.12", "scipy": "1.17.1", "torch": "2.13.0"}


def test_it_has_the_form_of_nbformat_4_5(tmp_path):
    path = tmp_path / "join.ipynb"
    write(path, ADDRESSES, None, LIBRARIES)
    book = json.loads(path.read_text(encoding="utf-8"))
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    assert set(book) == {"cells", "metadata", "nbformat", "nbformat_minor"}
    names = [cell["id"] for cell in book["cells"]]
    assert len(set(names)) == len(names)
    for cell in book["cells"]:
        needed = {"cell_type", "id", "metadata", "source"}
        assert set(cell) == (needed if cell["cell_type"] == "markdown" else {*needed, "execution_count", "outputs"})
        assert all(isinstance(line, str) for line in cell["source"])
        assert all(line.endswith("\n") for line in cell["source"][:-1])


def code(book, name):
    (cell,) = [cell for cell in book["cells"] if cell["id"] == name]
    return "".join(cell["source"])


def test_it_joins_at_all_addresses_as_a_client():
    joins = code(notebook(ADDRESSES, None, LIBRARIES), "join").splitlines()[-1]
    assert joins == f"!sahajflow join {' '.join(ADDRESSES)} --role client $CALLED"


@pytest.mark.parametrize("package", [None, "git+https://example.org/us/sahajflow@v1"])
def test_it_installs_what_the_organiser_says_with_the_swarms_versions(package):
    *lines, pip = code(notebook(ADDRESSES, package, LIBRARIES), "install").splitlines()
    assert pip == '%pip install --quiet "$PACKAGE" "hivemind==1.1.12" "scipy==1.17.1"'
    names: dict = {}
    plain = "\n".join(lines)
    assert [type(one).__name__ for one in ast.parse(plain).body] == ["Assign", "Assert"]
    if package is None:
        with pytest.raises(AssertionError, match="ask the organiser"):
            exec(plain, names)
    else:
        exec(plain, names)
        assert names["PACKAGE"] == package
