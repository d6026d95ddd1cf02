import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from flows.arguments import STAGES
from flows.command_line import main
from flows.graph import STAGES as GRAPH_STAGES

HEAVY = ("torch", "transformers", "datasets", "prefect", "hivemind", "tokenizers", "pyarrow", "sklearn", "numpy")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SAHAJFLOW_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_stages_are_those_of_the_graph() -> None:
    # Repeated in the command line so that --help need not import the stages.
    assert STAGES == GRAPH_STAGES


@pytest.mark.parametrize(
    ("arguments", "forbidden"),
    [
        (["--help"], (*HEAVY, "pydantic", "yaml", "rich")),
        (["plan", "demo"], HEAVY),
        (["cost", "demo"], HEAVY),
        (["recipes"], HEAVY),
    ],
)
def test_quick_commands_import_nothing_heavy(arguments: list[str], forbidden: tuple[str, ...]) -> None:
    code = (
        "import sys\n"
        "from flows.command_line import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print('IMPORTED', *sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *arguments], capture_output=True, text=True, check=True, env=os.environ
    )
    imported = done.stdout.rpartition("IMPORTED")[2].split()
    assert set(imported) & set(forbidden) == set()


def test_every_command_leaves_telemetry_off_unless_it_was_asked_for() -> None:
    code = (
        "from flows.command_line import main; main(['recipes'])\n"
        "import os, huggingface_hub.constants as hub\n"
        "of = os.environ\n"
        "print(hub.HF_HUB_DISABLE_TELEMETRY, of['DO_NOT_TRACK'], of['PREFECT_SERVER_ANALYTICS_ENABLED'])"
    )
    names = ("DO_NOT_TRACK", "HF_HUB_DISABLE_TELEMETRY", "PREFECT_SERVER_ANALYTICS_ENABLED")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    for asked, off in (
        ({}, "True 1 false"),
        ({"DO_NOT_TRACK": "0", "HF_HUB_DISABLE_TELEMETRY": "0"}, "False 0 false"),
    ):
        told = subprocess.check_output([sys.executable, "-P", "-c", code], env=environment | asked, text=True)
        assert told.splitlines()[-1] == off


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"sahajflow {metadata.version('sahajflow')}\n"


def test_plan_of_an_empty_store_writes_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "demo"]) == 0
    assert "corpus" in capsys.readouterr().out
    assert not home.exists()


def test_plan_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "demo", "--json"]) == 0
    steps = json.loads(capsys.readouterr().out)
    assert [step["stage"] for step in steps if not step["stage"].startswith("seed-run/")] == list(STAGES)
    assert steps[0]["action"] == "run"
    assert {step["action"] for step in steps[1:]} <= {"wait"}


def test_engine_that_is_not_here_is_said_by_plan_and_refused_by_run(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = "bert-gaudi"
    assert main(["plan", recipe]) == 0
    (warning,) = capsys.readouterr().err.splitlines()
    assert "pretraining.engine=local" in warning
    assert main(["run", recipe]) == 2
    assert capsys.readouterr().err.splitlines() == [warning]
    assert not home.exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", "dmeo"], "dmeo: no such recipe; did you mean demo?"),
        (["run", "demo", "--set", "packing.sequence_lenght=1"], "packing.sequence_lenght: unknown key; did you mean"),
        (["run", "demo", "--set", "pretraining.steps=many"], "pretraining.steps: 'many'"),
        (["run", "demo", "--only", "report"], "report needs the result of corpus"),
        (["run", "demo", "--only", "pack", "--until", "report"], "--until does not go with --only"),
        (["run", "demo", "--until", "pack", "--force", "report"], "--force report: is not among"),
        (["run", "no/such.yaml"], "no/such.yaml: no such file"),
        (["report", "demo"], "has no up-to-date report"),
        (["join", "127.0.0.1:31337"], "127.0.0.1:31337: is no address of a member; copy the line that"),
        (["join", "/ip4/127.0.0.1/tcp/31337"], "is no address of a member"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(
    arguments: list[str], told: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line
    assert not home.exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", "demo", "--only", "packing"], "sahajflow run: argument --only: invalid choice: 'packing'"),
        (["fly"], "sahajflow: argument COMMAND: invalid choice: 'fly'"),
        ([], "see sahajflow --help"),
        (["run", "demo", "--workers", "0"], "0: should be a whole number from 1 to 1024; see sahajflow run --help"),
        (
            ["run", "demo", "--workers", "abc"],
            "abc: should be a whole number from 1 to 1024; see sahajflow run --help",
        ),
        (["plan", "demo", "more\nlines"], "unrecognized arguments: more lines"),
        (["plan", "demo", "\x1b[2J"], r"unrecognized arguments: \x1b[2J"),
    ],
)
def test_wrong_arguments_are_one_line_and_status_2(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line


@pytest.mark.parametrize("command", ["plan", "run", "cost", "status", "clean", "report"])
@pytest.mark.parametrize("kind", ["file", "foreign", "nobody", "long"])
def test_place_that_can_be_no_store_is_one_line_and_status_2(
    command: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = {"nobody": "~nobody-at-all/store", "long": "x" * 5000}.get(kind, str(tmp_path / kind))
    if kind == "file":
        Path(store).touch()
    if kind == "foreign":
        Path(store).mkdir()
        (Path(store) / "mine.txt").touch()
    recipe = ["demo"] if command in {"plan", "run", "cost", "report"} else []
    assert main([command, *recipe, "--store", store]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--store" in line
    assert main(["doctor", "--store", store]) == 1
    assert "FAIL" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["run", "demo", "--store", "good"], ["run", "demo"], ["up"], ["down"]])
@pytest.mark.parametrize("place", ["/proc/nope", "/etc/passwd", "~nobody-at-all"])
def test_home_that_cannot_be_is_one_line_and_status_2(
    command: list[str],
    place: str,
    no_prefect_configured: None,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SAHAJFLOW_HOME", place)
    assert main(command) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert place in line


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("PREFECT_API_URL", "http://exa mple/api", "http://exa mple/api does not answer (set in PREFECT_API_URL)"),
        ("PREFECT_API_URL", "nonsense", "nonsense does not answer (set in PREFECT_API_URL)"),
        ("PREFECT_PROFILES_PATH", "/tmp", "/tmp: Prefect's settings cannot be read (Is a directory)"),
        ("PREFECT_HOME", "~nobody-at-all", "there is no such user"),
    ],
)
@pytest.mark.parametrize("command", [["run", "demo"], ["up"]])
def test_wrong_prefect_settings_are_one_line_and_status_2(
    command: list[str],
    name: str,
    value: str,
    told: str,
    no_prefect_configured: None,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(name, value)
    assert main(command) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert told in line


@pytest.mark.parametrize(("force", "told"), [([], "go on from here"), (["--force", "corpus"], "the forced stage")])
def test_interruption_says_how_to_go_on(
    force: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("flows.execution.prepare", interrupted)
    assert main(["plan", "demo", *force]) == 130
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line


RUN_MAIN = "import sys; from flows.command_line import main; sys.exit(main(sys.argv[1:]))"


def test_full_disk_under_the_output_is_one_line_and_status_1() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-P", "-c", RUN_MAIN, "plan", "demo"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "sahajflow: the output: No space left on device\n"


def test_output_of_few_characters_is_no_error() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", RUN_MAIN, "plan", "demo", "--store", "ভাষা"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii:strict"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "store /" in done.stdout
    assert "\\u09ad" in done.stdout


def recipe_over(path: Path, tmp_path: Path) -> str:
    recipe = tmp_path / "own.yaml"
    demo = Path(__file__).parents[2] / "flows" / "recipes" / "demo.yaml"
    import yaml

    data = yaml.safe_load(demo.read_text(encoding="utf-8"))
    data["corpus"] = {"sources": [{"kind": "files", "paths": [str(path)]}]}
    recipe.write_text(yaml.safe_dump(data), encoding="utf-8")
    return str(recipe)


def test_missing_corpus_file_is_found_by_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", recipe_over(tmp_path / "none.txt", tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "none.txt" in line


@pytest.mark.parametrize(
    ("content", "told"),
    [(b"", "corpus"), (b"\n \n", "corpus"), ("ঠিক\n".encode() + b"\xff\xfe\n", "UTF-8")],
)
def test_corpus_that_cannot_be_used_leaves_nothing_half_written(
    content: bytes, told: str, tmp_path: Path, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from flows.execution import Options, run_chain
    from tasks.contract import UserError, no_progress

    text = tmp_path / "text.txt"
    text.write_bytes(content)
    with pytest.raises(UserError, match=told) as error:
        run_chain(Options(recipe_over(text, tmp_path), only="corpus"), lambda node, work: work(no_progress))
    assert "\n" not in str(error.value)
    assert not list(home.glob("store/work/*/*"))
    assert not list(home.glob("store/artifacts/*/*"))


def test_status_clean_recipes_and_doctor_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status"]) == 0
    assert "nothing is running" in capsys.readouterr().out
    assert main(["clean", "--dry-run"]) == 0
    assert "nothing to remove" in capsys.readouterr().out
    assert main(["recipes"]) == 0
    assert "my-language" in capsys.readouterr().out
    main(["doctor"])
    assert "import tokenizers gives the library" in capsys.readouterr().out
