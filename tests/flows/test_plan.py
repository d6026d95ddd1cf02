import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tasks.contract import UserError

sys.path.insert(0, str(Path(__file__).parent))
from stub_chain import Chain, StubSettings


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    return Chain(tmp_path)


def change(chain: Chain, stage: str, **settings: object) -> None:
    chain.settings[stage] = StubSettings(**settings)


def test_first_run_then_everything_is_reused(chain: Chain) -> None:
    assert chain.actions() == {
        "corpus": "run",
        "tokenizer": "wait",
        "pack": "wait",
        "evaluate": "wait",
        "report": "wait",
    }
    assert not chain.store.root.exists()
    chain.run()
    assert chain.ran == list(chain.order)
    assert set(chain.actions().values()) == {"reuse"}
    chain.run()
    assert chain.ran == []


def test_changed_setting_is_named_with_old_and_new(chain: Chain) -> None:
    chain.run()
    change(chain, "pack", size=7)
    corpus, tokenizer, pack, evaluate, _ = chain.plan()
    assert (corpus.action, tokenizer.action) == ("reuse", "reuse")
    assert (pack.action, pack.reason) == ("run", "pack.size: 1 -> 7")
    assert (evaluate.action, evaluate.reason) == ("wait", "waits for pack")
    chain.run()
    assert chain.ran == ["pack", "evaluate", "report"]


def test_an_upgrade_says_what_it_invalidates_and_why(chain: Chain) -> None:
    chain.run()
    chain.versions["pack"] = 5
    corpus, tokenizer, pack, evaluate, _ = chain.plan()
    assert (corpus.action, tokenizer.action) == ("reuse", "reuse")
    made = f"{datetime.now(UTC):%Y-%m-%d}"
    upgraded = f"pack is at version 5 in this sahajflow, the result of {made} was made by version 1"
    assert (pack.action, pack.reason) == ("run", upgraded)
    assert (evaluate.action, evaluate.reason) == ("wait", "waits for pack")
    change(chain, "pack", size=7)
    assert chain.plan()[2].reason == f"{upgraded}; pack.size: 1 -> 7"
    change(chain, "pack", size=1)
    # equal bytes from the newer version leave all that follows as it is
    chain.run()
    assert chain.ran == ["pack"]


def test_going_back_to_earlier_settings_reuses_the_earlier_result(chain: Chain) -> None:
    chain.run()
    change(chain, "pack", size=7)
    chain.run()
    change(chain, "pack", size=1)
    chain.run()
    assert chain.ran == []


def test_forced_stage_with_equal_bytes_leaves_what_follows_reused(chain: Chain) -> None:
    chain.run()
    assert chain.actions(force=("pack",))["pack"] == "run"
    outcomes = chain.run(force=("pack",))
    assert chain.ran == ["pack"]
    assert outcomes["report"].action == "reused"


def test_forced_stage_with_other_bytes_reruns_what_follows(chain: Chain) -> None:
    first = chain.run()
    chain.noise["pack"] = "another vocabulary"
    second = chain.run(force=("pack",))
    assert chain.ran == ["pack", "evaluate", "report"]
    assert second["pack"].path == first["pack"].path
    assert second["pack"].record.digest != first["pack"].record.digest
    assert set(chain.actions().values()) == {"reuse"}


def test_damaged_artifact_is_found_moved_to_trash_and_rebuilt(chain: Chain) -> None:
    path = chain.run()["tokenizer"].path
    (path / "out.json").write_text("")
    tokenizer = chain.plan()[1]
    assert tokenizer.action == "run"
    assert "damaged: out.json has 0 bytes" in tokenizer.reason
    chain.run()
    assert chain.ran == ["tokenizer"]
    assert [place.name[:9] for place in (chain.store.root / "trash").iterdir()] == ["tokenizer"]
    assert set(chain.actions().values()) == {"reuse"}


def test_users_file_counts_by_content(chain: Chain, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("one")
    change(chain, "corpus", paths=[str(file)])
    chain.run()
    file.rename(tmp_path / "moved.txt")
    change(chain, "corpus", paths=[str(tmp_path / "moved.txt")])
    assert set(chain.actions().values()) == {"reuse"}
    (tmp_path / "moved.txt").write_text("two")
    step = chain.plan()[0]
    assert step.action == "run"
    assert "corpus.paths" in step.reason


def test_only_needs_its_inputs_and_names_the_missing_one(chain: Chain) -> None:
    with pytest.raises(UserError, match="pack needs the result of corpus, which does not exist"):
        chain.plan(only="pack")
    chain.run(until="tokenizer")
    assert chain.ran == ["corpus", "tokenizer"]
    chain.run(only="pack")
    assert chain.ran == ["pack"]
    with pytest.raises(UserError, match="report needs the result of evaluate"):
        chain.plan(only="report")


def test_from_and_until_select_a_range(chain: Chain) -> None:
    chain.run()
    assert list(chain.actions(start="pack", until="evaluate")) == ["pack", "evaluate"]
    with pytest.raises(UserError, match="comes before"):
        chain.plan(start="report", until="corpus")
    with pytest.raises(UserError, match="--force corpus: is not among the selected stages"):
        chain.plan(only="pack", force=("corpus",))


def test_unfinished_work_is_told(chain: Chain) -> None:
    step = chain.plan()[0]
    chain.store.create()
    chain.store.work("corpus", step.fingerprint or "").mkdir(parents=True)
    assert chain.plan()[0].reason == "unfinished: goes on where it stopped"


def test_json_form_has_the_documented_keys(chain: Chain) -> None:
    chain.run(until="corpus")
    done, new = (step.as_json() for step in chain.plan(until="tokenizer"))
    assert set(done) == {"stage", "action", "reason", "fingerprint", "path"}
    assert done["action"] == "reuse"
    assert Path(done["path"] or "").is_dir()
    assert new["action"] == "run"
    assert new["reason"] == "no result yet"
