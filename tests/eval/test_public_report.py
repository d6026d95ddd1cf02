"""What must not leave a machine, planted into a report."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from report_artifacts import NER_SCORES, report_in, task_result
from test_report_peers import ledger, peer

from eval.public_report import HIDDEN_ADDRESS, HIDDEN_HOST, Private, private_facts, public_report
from eval.report_schema import Report
from eval.results import MissingSeed, Results

HOME = "/mnt/people/anna"
HOST = "workshop"  # of report_artifacts' records


def private(**more: Any) -> Private:
    return Private(**{"hosts": ["workshop", "gpu1.example.org"], "folders": [HOME], **more})


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("/mnt/people/anna/my texts (new)/a*.txt", "a*.txt"),
        ("~/texts/a.txt", "a.txt"),
        ("cannot read /srv/data/b.csv: no such file", "cannot read b.csv: no such file"),
        ("in /mnt/people/anna/a b/c.csv, line 3", "in a b/c.csv, line 3"),
        ("'/opt/x/y.json' is broken", "'y.json' is broken"),
        ("from file:///opt/x/y.json", "from y.json"),
        ("/mnt/people/anna", "anna"),
        ("no space in /mnt/people/anna now", "no space in  now"),
        ("/ip4/203.0.113.7/tcp/31337/p2p/QmKey", HIDDEN_ADDRESS),
        ("no answer from /ip4/203.0.113.7/tcp/31337/p2p/QmKey yet", f"no answer from {HIDDEN_ADDRESS} yet"),
        ("tcp://10.0.0.5:8786", HIDDEN_ADDRESS),
        ("peer at 192.168.1.20 left", f"peer at {HIDDEN_ADDRESS} left"),
        ("on workshop and gpu1", f"on {HIDDEN_HOST} and {HIDDEN_HOST}"),
        ("ran on GPU1.example.org", f"ran on {HIDDEN_HOST}"),
        # what stays
        ("https://huggingface.co/blog/collaborative-training", "https://huggingface.co/blog/collaborative-training"),
        ("see https://example.org/mnt/people/anna/c.html", "see https://example.org/mnt/people/anna/c.html"),
        ("see https://example.org/a/b/c.html.", "see https://example.org/a/b/c.html."),
        ("unimelb-nlp/wikiann bn, revision 1234567", "unimelb-nlp/wikiann bn, revision 1234567"),
        ("unshuffled/train/*.parquet", "unshuffled/train/*.parquet"),
        ("and/or 3/4 n = 4/5", "and/or 3/4 n = 4/5"),
        ("workshop", "workshop"),  # one word alone may be the name of a stage, a task or a model
        ("the workshops", "the workshops"),
        ("version 2.13.0", "version 2.13.0"),
    ],
)
def test_texts(text: str, left: str) -> None:
    assert private().removed(text) == left


def test_a_hosts_name_that_the_recipe_uses_is_an_ordinary_word() -> None:
    assert private(known=["a Workshop for weavers"]).removed("in the workshop here") == "in the workshop here"
    assert private(known=["workshops"]).removed("in the workshop here") == f"in the {HIDDEN_HOST} here"


def test_what_would_still_be_told_is_found() -> None:
    assert private().found(f"see {HOME}/a") == HOME
    assert private().found(f"see {HOME}belle/a") is None
    assert private().found(f"see https://example.org{HOME}/a") is None
    assert private().found('["/ip4/10.0.0.5/tcp/31337"]') == "/ip4/10.0.0.5/tcp/31337"
    assert private().found("all is well") is None


def planted(root: Path, **more: Any) -> Report:
    reason = f"OSError: {HOME}/store/x.arrow on workshop"
    results = Results(
        tasks=(
            task_result(
                "ner",
                "ner",
                NER_SCORES,
                missing={"random": [MissingSeed(seed=9, reason=reason)]},
                warnings=(f"2 items of {HOME}/labelled/test.conll are in the training split too",),
            ),
        )
    )
    peers = [peer("annas-phone"), peer("bela's laptop", peer="cd34ef56ab78ab12")]
    final = {"peers": ["bela's laptop", "gone"], "distance": 3.1e-05, "bound": 0.001}
    text, _, _ = report_in(root, results=results, ledger=ledger(peers=peers, final=final))
    report = Report.model_validate_json(text)
    recipe = {
        **report.recipe,
        "corpus": {
            "sources": [{"kind": "files", "paths": [f"{HOME}/my texts/*.txt"]}],
            "scheduler": "tls://10.0.0.5:1",
        },
        "pretraining": {
            "collaborative": {
                "peers": 2,
                "listen": ["/ip4/0.0.0.0/tcp/31337"],
                "announce": ["/ip4/198.51.100.9/tcp/1"],
            }
        },
    }
    return report.model_copy(update={"recipe": recipe, **more})


def test_a_public_report_has_none_of_it_and_is_a_report(tmp_path: Path) -> None:
    report = planted(tmp_path)
    secrets = [HOST, HOME, "anna", "bela", "10.0.0.5", "198.51.100", "0.0.0.0", "ab12cd34ef56ab78", "cd34ef56"]
    whole = report.model_dump_json()
    assert [secret for secret in secrets if secret not in whole] == []
    public = public_report(report, private_facts(report, []))
    assert [secret for secret in secrets if secret in public.model_dump_json()] == []
    assert public.recipe["corpus"]["sources"][0]["paths"] == ["*.txt"]
    assert public.recipe["pretraining"]["collaborative"] == {"peers": 2}
    assert public.results.tasks[0].models[1].missing[0].reason == f"OSError: x.arrow on {HIDDEN_HOST}"
    assert public.environments[0].packages == report.environments[0].packages
    assert public.results.tasks[0].models[0] == report.results.tasks[0].models[0]
    assert public.collaboration
    assert [(one.name, one.samples) for one in public.collaboration.peers] == [("peer 1", 45210), ("peer 2", 45210)]
    assert public.collaboration.final.peers == ("peer 2", "another peer")


def test_peers_are_named_if_the_recipe_says_so(tmp_path: Path) -> None:
    report = planted(tmp_path)
    public = public_report(report, private_facts(report, []), peer_names=True)
    assert public.collaboration
    assert [one.name for one in public.collaboration.peers] == ["annas-phone", "bela's laptop"]


def test_a_report_without_secrets_stays_as_it_is(tmp_path: Path) -> None:
    text, _, _ = report_in(tmp_path)
    report = Report.model_validate_json(text)
    before, after = json.loads(text), public_report(report, private_facts(report, [])).model_dump(mode="json")
    for place in [*before["environments"], *(run["machine"] for run in before["cost"]["measured"])]:
        place["host"] = ""
    assert after == before
