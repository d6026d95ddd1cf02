import ast
import os
import re
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted(path for folder in ("flows", "tasks", "eval") for path in (ROOT / folder).rglob("*.py"))


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize(
    ("folder", "forbidden"), [("tasks", {"prefect", "flows", "eval"}), ("eval", {"prefect", "flows"})]
)
def test_lower_layers_do_not_import_higher_ones(folder: str, forbidden: set[str]) -> None:
    offenders = {str(path.relative_to(ROOT)): imported(path) & forbidden for path in (ROOT / folder).rglob("*.py")}
    assert {path: names for path, names in offenders.items() if names} == {}


def test_no_module_hides_a_library_or_a_standard_module() -> None:
    # Prefect puts the folder of a flow's file first on the path, where `queue.py` would hide the standard one.
    taken = set(sys.stdlib_module_names) | set(metadata.packages_distributions()) | {"evaluate", "hivemind", "optimum"}
    taken -= {"flows", "tasks", "eval"}
    names = {path.stem if path.stem != "__init__" else path.parent.name for path in MODULES}
    assert names & taken == set()


def test_tokenizers_holds_data_only_and_tests_are_no_package() -> None:
    assert list((ROOT / "tokenizers").rglob("*.py")) == []
    assert list((ROOT / "tests").rglob("__init__.py")) == []


@pytest.mark.parametrize("arguments", [["-c"], ["-P", "-c"]])
def test_import_tokenizers_is_the_library_from_the_root(arguments: list[str]) -> None:
    code = "import tokenizers; print(tokenizers.Tokenizer)"
    done = subprocess.run([sys.executable, *arguments, code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "tokenizers.Tokenizer" in done.stdout, done.stderr


def test_import_tokenizers_is_the_library_in_tests() -> None:
    import tokenizers

    assert hasattr(tokenizers, "Tokenizer")


def test_machine_paths_and_left_overs_are_nowhere() -> None:
    told = re.compile(r"(?<![\w>])/work/|/home/\w|TODO|FIXME|NotImplementedError")
    files = subprocess.run(
        ["git", "ls-files", "*.py", "*.md", "*.yaml", "*.toml", "*.j2", "Makefile", ".ci/run"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    hits = {name for name in files if name != "tests/test_layout.py" and told.search((ROOT / name).read_text())}
    assert hits == set()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (path,) = folder.glob("*.whl")
    return path


def test_wheel_is_small_and_hides_no_library(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert [name for name in names if name.startswith(("tokenizers/", "tests/"))] == []
    assert wheel.stat().st_size < 1_000_000
    assert [name for name in names if name.endswith((".safetensors", ".bin", ".pt", ".arrow", "tokenizer.json"))] == []
    assert "tasks/tokenizer_definitions/bengali-unigram-32k.yaml" in names
    assert "flows/recipes/demo.yaml" in names
    assert any(name.startswith("eval/templates/") for name in names)


def test_wheel_works_when_installed_elsewhere(wheel: Path, tmp_path: Path) -> None:
    place = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(place), str(wheel)],
        check=True,
    )
    code = (
        "import sys, tokenizers, flows\n"
        "from flows.command_line import main\n"
        "assert tokenizers.Tokenizer\n"
        "print(flows.__file__)\n"
        "sys.exit(main(['plan', 'demo']))"
    )
    environment = {**os.environ, "PYTHONPATH": str(place), "SAHAJFLOW_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert str(place) in done.stdout
    assert "report" in done.stdout
