"""Patterns and special tokens are tried when a definition is loaded, so at every plan."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.contract import UserError
from tasks.tokenizer_definition import ReplaceNormalizer, built_in_definitions, definitions_folder, load_definition
from tasks.tokenizer_trials import check_pattern


def values() -> Any:
    return yaml.safe_load((definitions_folder() / "template.yaml").read_text(encoding="utf-8"))


def written(folder: Path, content: Any) -> str:
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("(", "the pattern '(' is wrong: "),
        ("x*", "the pattern 'x*' also matches where there is no character"),
        ("^", "the pattern '^' also matches"),
        ("(a|)", "the pattern '(a|)' also matches"),
    ],
)
@pytest.mark.parametrize("applied", [True, False])
def test_patterns_are_tried_before_there_is_a_text(pattern: str, says: str, applied: bool, tmp_path: Path) -> None:
    step = {"step": "replace", "regex": pattern, "by": " ", "switch": "mine"}
    path = written(tmp_path, values() | {"normalizer": [{"step": "nfkc"}, step], "switches": {"mine": applied}})
    with pytest.raises(UserError) as caught:
        load_definition(path)
    assert str(caught.value).startswith(f"{path}: normalizer.1: {says}")
    assert "\n" not in str(caught.value)


def test_the_built_in_patterns_are_right_so_that_a_plan_need_not_try_them() -> None:
    steps = [step for name in built_in_definitions() for step in load_definition(name).normalizer]
    patterns = {step.regex for step in steps if isinstance(step, ReplaceNormalizer) and step.regex}
    assert len(patterns) > 3
    for pattern in patterns:
        check_pattern(pattern, "here")


@pytest.mark.parametrize("token", ["a", "MASK", "প্যাড", "▁mask", "##ing", "7", "।", "...", "▁", "<>"])
def test_a_special_token_that_is_ordinary_text(token: str, tmp_path: Path) -> None:
    content = values()
    content["special_tokens"]["mask"]["token"] = token
    with pytest.raises(UserError) as caught:
        load_definition(written(tmp_path, content))
    assert "special_tokens.mask.token: is ordinary text" in str(caught.value)
    assert f"(got {token!r})" in str(caught.value)


@pytest.mark.parametrize("token", ["[M]", "<mask>", "<|mask|>", "__mask__", "\ue000"])
def test_special_tokens_of_other_forms(token: str, tmp_path: Path) -> None:
    content = values()
    content["special_tokens"]["mask"]["token"] = token
    assert load_definition(written(tmp_path, content)).special_tokens.mask.token == token
