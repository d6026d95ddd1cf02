"""A manifest names one training: equal settings and data make equal names, and a stranger's is checked."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tasks.pretraining.collaborative.manifest import Manifest, libraries, make_manifest
from tasks.record import Damaged, Record


@pytest.fixture
def artifact(tmp_path: Path):
    """Makes artifact folders in a store, as far as a manifest reads them."""

    def make(stage: str, digest: str, store: str = "store", fingerprint: str = "0123456789abcdef") -> Path:
        folder = tmp_path / store / "artifacts" / stage / fingerprint
        folder.mkdir(parents=True, exist_ok=True)
        now = datetime(2026, 3, 4, tzinfo=UTC)
        record = Record(
            stage=stage,
            version=1,
            fingerprint=fingerprint * 4,
            identity={},
            resolved={},
            inputs={},
            outputs={},
            digest=digest * 64,
            metrics={},
            started=now,
            finished=now,
            seconds=0.0,
            environment={},
        )
        (folder / "record.json").write_text(record.model_dump_json())
        return folder

    return make


@pytest.fixture
def manifest(settings, artifact) -> Manifest:
    return make_manifest(settings(), artifact("tokenizer", "a"), artifact("pack", "b"))


def test_a_manifest_tells_settings_data_and_versions(manifest, settings):
    assert manifest.settings == settings()
    assert manifest.tokenizer.model_dump() == {
        "path": "artifacts/tokenizer/0123456789abcdef",
        "digest": "a" * 64,
    }
    assert (manifest.pack.path, manifest.pack.digest) == ("artifacts/pack/0123456789abcdef", "b" * 64)
    assert manifest.libraries == libraries()
    assert set(manifest.libraries) == {"sahajflow", "hivemind", "torch", "transformers", "scipy"}
    assert manifest.libraries["hivemind"] == "1.1.12"
    assert Manifest.model_validate_json(manifest.model_dump_json()) == manifest


def test_equal_trainings_have_equal_names(manifest, settings, artifact):
    elsewhere = [artifact(*what, store="other", fingerprint="f" * 16) for what in (("tokenizer", "a"), ("pack", "b"))]
    assert make_manifest(settings(), *elsewhere).run_id == manifest.run_id
    other_ways = settings(log_every=1, checkpoint_every=7, collaborative={"peers": 5, "matchmaking_seconds": 1.0})
    assert make_manifest(other_ways, *elsewhere).run_id == manifest.run_id


def test_other_trainings_have_other_names(manifest, settings, artifact):
    folders = artifact("tokenizer", "a"), artifact("pack", "b")
    names = [
        manifest.run_id,
        make_manifest(settings(seed=1), *folders).run_id,
        make_manifest(settings(steps=13), *folders).run_id,
        make_manifest(settings("albert"), *folders).run_id,
        make_manifest(settings(engine="collaborative"), *folders).run_id,
        make_manifest(settings(engine="collaborative", collaborative={"compression": "none"}), *folders).run_id,
        make_manifest(settings(), artifact("tokenizer", "c", store="1"), folders[1]).run_id,
        make_manifest(settings(), folders[0], artifact("pack", "c", store="2")).run_id,
        make_manifest(settings(), artifact("tokenizer", "b", store="3"), artifact("pack", "a", store="3")).run_id,
    ]
    assert len(set(names)) == len(names)


def test_an_artifact_without_a_record_is_damaged(settings, artifact, tmp_path):
    with pytest.raises(Damaged):
        make_manifest(settings(), tmp_path, artifact("pack", "b"))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("run_id", "other-0123456789abcdef"),
        ("run_id", "sahajflow-0123456789abcdef.x"),  # hivemind's keys may not hold a point
        ("run_id", "sahajflow-0123"),
        ("run_id", "sahajflow-0123456789abcdef\n"),
        ("tokenizer", {"path": "../../../etc", "digest": "a" * 64}),
        ("tokenizer", {"path": "/etc/passwd", "digest": "a" * 64}),
        ("tokenizer", {"path": "artifacts/../0123456789abcdef", "digest": "a" * 64}),
        ("tokenizer", {"path": "artifacts/tokenizer/0123456789abcdef", "digest": "A" * 64}),
        ("pack", {"path": "artifacts/pack/0123456789abcdef", "digest": "a" * 63}),
        ("pack", {"path": "artifacts/pack/0123456789abcdef"}),
        ("pack", None),
        ("libraries", ["torch"]),
        ("libraries", {"torch": 2}),
        ("settings", {}),
        ("more", 1),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(manifest, place: str, value: Any):
    told = manifest.model_dump(mode="json")
    assert Manifest.model_validate_json(json.dumps(told)) == manifest
    with pytest.raises(ValidationError, match=place):
        Manifest.model_validate_json(json.dumps(told | {place: value}))


def test_settings_of_a_stranger_are_checked_as_a_recipes(manifest):
    told = manifest.model_dump(mode="json")
    told["settings"]["pretraining"]["batch_size"] = -1
    with pytest.raises(ValidationError, match="batch_size"):
        Manifest.model_validate_json(json.dumps(told))
