"""Another valid value for every key of a recipe, and what has to change with it."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from flows.recipe import Recipe, load_recipe
from tasks.contract import EXECUTION, UserError


def together(key: str, value: Any, folder: Path, recipe: Recipe) -> list[str] | None:
    """Changes for keys that are bound to another one by a validator, or that say what their neighbours mean."""
    parent = key.rpartition(".")[0]
    # neither sentence order nor LAMB is for engine gaudi
    elsewhere = ["pretraining.engine=collaborative"] if recipe.pretraining.engine == "gaudi" else []
    if key in {"packing.mode", "pretraining.objective"}:
        pairs = value in {"concatenate", "mlm"}
        return [
            *elsewhere,
            f"packing.mode={'sentence-pairs' if pairs else 'concatenate'}",
            f"pretraining.objective={'mlm+sop' if pairs else 'mlm'}",
            *(["model.architecture=albert"] if pairs else []),
        ]
    if key == "tokenizer.definition":
        return [f"{key}={'bert-wordpiece-32k' if value != 'bert-wordpiece-32k' else 'template'}"]
    if key == "tokenizer.references":
        return [f"{key}={json.dumps([{'name': 'other', 'file': str(folder / 'other.txt')}])}"]
    if key == "pretraining.optimizer" and value == "lamb":
        return [f"{key}=adamw", "pretraining.lamb_clamp=10000"]
    if key == "pretraining.optimizer" and elsewhere:
        return [f"{key}=lamb", *elsewhere]
    if key == "pretraining.lamb_clamp":
        return [f"{key}=5000.0", "pretraining.optimizer=lamb", *elsewhere]
    if key == "corpus.drop_duplicates":
        return [f"{key}={json.dumps(not value)}", "corpus.near_duplicates=null"]
    if key in {"corpus.script", "corpus.near_duplicates", "corpus.decontamination"} and value is None:
        return [
            f"{key}={'{names: [Bengali, Latin]}' if key == 'corpus.script' else '{}'}",
            "corpus.drop_duplicates=true",
        ]
    if key == "corpus.script.names":
        return [f"{key}=[Latin]"]
    if key == "publishing.languages":
        return [f"{key}=[sat]"]
    if key in {"publishing.license_name", "publishing.license_link"}:
        return ["publishing.license=other", "publishing.license_name=own", "publishing.license_link=own"]
    if key.startswith("publishing.source_licenses."):
        return [f"{key}=mit"]
    if key in {"evaluation.at_once", "evaluation.threads"}:
        return [f"{key}={2 if value != 2 else 3}"]
    if key == "evaluation.scheduler":
        return [f"{key}=tcp://127.0.0.1:8786", "evaluation.at_once=auto"]
    if key.endswith(".scheduler"):
        return [f"{key}=tcp://127.0.0.1:8786"]
    if key == "pretraining.engine" and recipe.pretraining.probe is not None:
        return [f"{key}=collaborative", "pretraining.probe=null"]
    if key == "pretraining.probe.task":
        return [f"{key}={next(name for name in recipe.evaluation.tasks if name != value)}"]
    if key == "pretraining.devices":
        return [f"{key}=1"]  # divides every batch
    if key in {"model.embedding_size", "model.layer_groups"}:
        return [f"{key}=2", "model.architecture=albert"]
    if key == "model.architecture" and value == "albert":
        return [
            *("model.architecture=bert", "model.embedding_size=null", "model.layer_groups=1"),
            *("packing.mode=concatenate", "pretraining.objective=mlm"),
        ]
    if key.startswith("corpus.sources.") and key.endswith(".weight"):
        sources = [source.model_dump(mode="json") for source in recipe.corpus.sources]
        if len(sources) == 1:
            sources.append({"kind": "sample", "name": "second"})
        return ["corpus.sources=" + json.dumps([{**source, "weight": 1 / len(sources)} for source in sources])]
    if key.startswith("corpus.sources.") and key.endswith((".config", ".parquet_files")) and value is None:
        other = "parquet_files" if key.endswith(".config") else "config"
        return [f"{key}=other", f"{parent}.{other}=null"]
    if key.startswith("evaluation.") and key.endswith(".parquet_files"):
        return [f"{key}=other/{{split}}.parquet"]
    if key.startswith("evaluation.") and key.endswith(".source.local"):
        return [f"{key}={folder}/other{{split}}"]
    if key == "cost.prices":
        return [f"{key}={folder / 'other.txt'}"]
    if "compare_with" in key and key.endswith((".local", ".path")):
        hub = [f"{parent}.hub=null", f"{parent}.revision=null"] if key.endswith(".path") else []
        return [f"{key}={folder / 'model'}", *hub]
    if key.endswith(".strip_accents"):
        return [f"{key}=false", f"{parent}.keep_accents=null"]
    if value == "main" and key.endswith(".revision"):
        return [f"{key}={'a' * 40}"]
    if key.endswith(".sha256"):
        return [f"{key}={'a' * 64}"]
    if key.endswith(".fine_tuning.threshold"):
        return [f"{key}=0.02", f"{parent}.patience=2"]
    if key.endswith(".fine_tuning.patience") and value is not None:
        return [f"{key}={value + 1}"]
    if key.endswith(".labels") and value is None:
        files = {"kind": "files"} | {split: str(folder / "other.csv") for split in ("train", "validation", "test")}
        ner = at(recipe, parent).kind == "ner"
        return [f"{parent}.source={json.dumps(files)}", f"{key}={'[O, B-PER, I-PER]' if ner else '[x, y]'}"]
    if re.fullmatch(r"evaluation\.tasks\.[^.]+\.kind", key) and value == "classification":
        return [f"{key}=ner", f"{parent}.labels=null"]
    if re.fullmatch(r"corpus\.sources\.\d+\.name", key):
        return [f"{key}={value}x", "publishing.source_licenses={}"]
    if key.endswith(".kind") and ".source" in key:
        other = {"kind": "files", "name": "other", "paths": [str(folder / "other.txt")]}
        if "tasks" in key:
            other = {"kind": "files"} | {split: str(folder / "other.csv") for split in ("train", "validation", "test")}
        if value == "files":
            other = {"kind": "sample"}
        weights = ["corpus.sources=" + json.dumps([other]), "publishing.source_licenses={}"]
        weights = weights if key.startswith("corpus") else None
        return weights or [f"{parent}={json.dumps(other)}", f"{parent.rpartition('.')[0]}.labels=null"]
    return None


def leaves(model: BaseModel, place: str = "", marks: Sequence[Any] = ()) -> Iterator[tuple[str, Any, list[Any], Any]]:
    """(dotted key, value, marks, annotation) of every setting, lists and mappings by their items."""
    for name, field in type(model).model_fields.items():
        key = f"{place}{name}"
        yield from _leaves_of(key, getattr(model, name), [*marks, *field.metadata], field.annotation)


def _leaves_of(key: str, value: Any, marks: list[Any], annotation: Any) -> Iterator[tuple[str, Any, list[Any], Any]]:
    if isinstance(value, BaseModel):
        yield from leaves(value, f"{key}.", [EXECUTION] if EXECUTION in marks else [])
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _leaves_of(f"{key}.{name}", item, marks, annotation)
    elif isinstance(value, list | tuple) and any(isinstance(item, BaseModel) for item in value):
        for number, item in enumerate(value):
            yield from _leaves_of(f"{key}.{number}", item, marks, annotation)
    else:
        yield key, value, marks, annotation


def literals(annotation: Any) -> list[Any]:
    found = []
    for part in get_args(annotation):
        found += [part] if isinstance(part, str | int | bool) else literals(part)
    return found


def candidates(value: Any, annotation: Any, folder: Path) -> list[Any]:
    """Other values to try for one setting."""
    other = [choice for choice in literals(annotation) if choice != value]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [*other, value + 1, value * 2, value // 2, value - 1, value + 8]
    if isinstance(value, float):
        return [value * 0.5, value + 0.25, value * 2, value + 1]
    if isinstance(value, str):
        hex_digits = "0123456789abcdef"
        turned = hex_digits[(hex_digits.find(value[:1]) + 1) % 16] + value[1:]
        files = [str(folder / "other.csv"), str(folder / "other.txt")]
        return [*other, *files, f"{value}x", turned, "bengali-wordpiece-32k"]
    if isinstance(value, list | tuple):
        numbers = [[item / 2 if isinstance(item, float) else item for item in value]] if value else []
        paths = [[str(folder / "other.txt")]]
        if value and "/" in str(value[0]):
            return paths
        return [*numbers, list(reversed(value)), list(value)[:-1], [*value, "B-NEW"]]
    assert value is None
    return [
        *other,
        1,
        2,
        0.5,
        64,
        1_000_000_000,
        "text",
        ["A", "B"],
        ["O", "B-PER", "I-PER"],
        str(folder / "other.txt"),
    ]


def changed(recipe: str, base: list[str], key: str, value: Any, annotation: Any, folder: Path) -> list[str]:
    """Settings that make a valid recipe in which this key has another value."""
    before = load_recipe(recipe, base)
    tries = [[f"{key}={json.dumps(choice)}"] for choice in candidates(value, annotation, folder)]
    if special := together(key, value, folder, before):
        tries.insert(0, special)
    for changes in tries:
        try:
            after = load_recipe(recipe, [*base, *changes])
        except UserError:
            continue
        if at(after, key) != value and after != before:
            return changes
    pytest.fail(f"{recipe}: no other valid value found for {key} = {value!r}; see together()")


def at(model: Any, key: str) -> Any:
    for part in key.split("."):
        if isinstance(model, BaseModel):
            model = getattr(model, part, None)
        elif isinstance(model, dict):
            model = model.get(part)
        elif model is not None:
            model = model[int(part)] if int(part) < len(model) else None
    return model
