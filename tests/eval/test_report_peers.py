"""The report's section on the peers of a collaborative pretraining."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from eval.peers_chart import MOST_BARS, contribution_chart
from eval.rendering import in_markdown
from eval.report import collect, render
from eval.report_facts import read_ledger
from eval.report_peers import peer_cautions, peers_view
from eval.report_schema import CollaborationFacts
from tasks.contract import StageError

sys.path.insert(0, str(Path(__file__).parent))
from report_artifacts import (
    CHROMIUM,
    NO_CHROMIUM,
    Page,
    build_artifacts,
    markdown_tables,
    report_in,
    settings,
    shown_by_a_browser,
)

NASTY = '<img src=x onerror="alert(1)"> | *a* `b`'


def peer(name: str = "peer-0", **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "peer": "ab12cd34ef56ab78",
        "samples": 45210,
        "share": 0.4967,
        "steps": 699,
        "first_step": 1,
        "last_step": 700,
        "matching": 71.5,
        "reducing": 1830.2,
        "computing": 201.94,
        "outcomes": {"averaged": 690, "alone": 3, "no group": 5, "failed": 1},
        **more,
    }


def ledger(**more: Any) -> dict[str, Any]:
    others = {"share": 0.5033, "samples": 45802, "peer": "cd34ef56ab78ab12", "steps": 700}
    return {
        "target_step": 700,
        "step": 700,
        "end": "target",
        "target_batch": 128,
        "samples": 91012,
        "seconds": 301.2,
        "peers": [peer(), peer("peer-1", **others, outcomes={"averaged": 700})],
        "groups": {"1": 12, "2": 688},
        "outcomes": {"averaged": 688, "alone": 12},
        "per_step": {"matching": 0.1, "reducing": 0.043, "computing": 0.288, "seconds": 0.43},
        "final": {"peers": ["peer-0", "peer-1"], "distance": 3.1e-05, "bound": 0.001},
        **more,
    }


def facts(**more: Any) -> CollaborationFacts:
    return CollaborationFacts.model_validate(ledger(**more))


def summary(**more: Any) -> str:
    return peers_view(facts(**more)).summary.replace("\N{NO-BREAK SPACE}", " ")


def kinds(**more: Any) -> list[str]:
    return [caution.kind for caution in peer_cautions(facts(**more))]


def test_both_formats_have_the_section_and_the_json_has_its_figures(tmp_path: Path) -> None:
    report, markdown, html = report_in(tmp_path, ledger=ledger())
    page = Page(html).text
    section = page[page.index("Peers\n") : page.index("Tokenizer, measured")]
    table = next(table for table in markdown_tables(markdown) if table[0][0] == " peer ")
    times = ["3 min 22 s", "1 min 12 s", "30 min 30 s"]
    assert [[cell.strip() for cell in row] for row in table[2:]] == [
        ["peer-0", "45,210", "49.67 %", "699", "690", "3", "6", *times],
        ["peer-1", "45,802", "50.33 %", "700", "700", "0", "0", *times],
    ]
    for text in (section, markdown[markdown.index("## Peers") : markdown.index("## Tokenizer")]):
        assert (
            "Two peers trained together: 98.3 % of the 700 global steps averaged the gradients of 2 peers; peer-0 "
            "gave 49.7 % of the samples, peer-1 50.3 %. At the end the weights of 2 peers differed by a relative L2 "
            "distance of 3.1e-05 (bound 1e-03)."
        ) in text
        assert (
            "a global step used 130.0 samples, 101.6 % of the target batch of 128, and took 0.43 s: a peer spent "
            "0.29 s computing, 0.10 s matching and 0.04 s reducing. Communication took 33.3 % of the step."
        ) in text
        assert "deadline" not in text
    stored = json.loads(report)["collaboration"]
    assert stored["groups"] == {"1": 12, "2": 688}
    assert stored["peers"][1]["outcomes"] == {"averaged": 700}
    assert stored["final"]["distance"] == 3.1e-05
    assert kinds() == []
    assert render(report) == (markdown, html)


def test_without_a_ledger_there_is_no_section_and_older_reports_still_render(tmp_path: Path) -> None:
    report, markdown, html = report_in(tmp_path)
    assert json.loads(report)["collaboration"] is None
    assert "## Peers" not in markdown
    assert 'id="peers"' not in html
    older = json.loads(report)
    del older["collaboration"]
    assert render(json.dumps(older)) == (markdown, html)


def test_the_deadline_is_said_at_the_top_and_in_the_section(tmp_path: Path) -> None:
    log = [{"step": 1, "mlm_loss": 7.0}]
    report, markdown, html = report_in(
        tmp_path,
        ledger=ledger(end="deadline", step=512, groups={"2": 512}),
        log=log,
        metrics={"pretrain": {"left_plateau": False}},
    )
    ending = "Pretraining was ended by its deadline at step 512 of 700."
    page = Page(html).text
    assert f"Warning. {ending}" in page[: page.index("Scores")]
    assert ending in page[page.index("Peers\n") : page.index("Tokenizer, measured")]
    assert f"> **Warning.** {ending}" in markdown[: markdown.index("## Scores")]
    assert f"**{ending}**" in markdown[markdown.index("## Peers") :]
    # What is important comes first, whatever it is about.
    cautions = json.loads(report)["cautions"]
    assert [caution["kind"] for caution in cautions[:2]] == ["plateau", "ended by deadline"]
    assert "deadline_minutes" in cautions[1]["text"]


def test_what_a_stranger_calls_itself_is_text_in_every_format(tmp_path: Path) -> None:
    names = [NASTY, "https://evil.example/x www.evil.example", "a\x1b[2J\u202e\ud800b", "\x00"]
    peers = [peer(name, peer=f"{number}" * 16, share=0.25) for number, name in enumerate(names)]
    report, markdown, html = report_in(
        tmp_path, ledger=ledger(peers=peers[:3], final={"peers": names, "distance": 1e-5, "bound": 1e-3})
    )
    page = Page(html)
    assert "<img" not in html
    assert page.text.count(NASTY) == 2, "in the sentence and in the table"
    assert "<img" not in markdown
    assert markdown.count(r'&lt;img src=x onerror="alert(1)"&gt; \| \*a\* \`b\`') == 2
    table = next(table for table in markdown_tables(markdown) if table[0][0] == " peer ")
    assert {len(row) for row in table} == {10}
    # Nobody becomes a link in the report by joining the training.
    assert not [value for _, name, value in page.attributes if name == "href" and "evil" in (value or "")]
    assert page.text.count("https://evil.example/x www.evil.example") == 2
    assert markdown.count(r"https\://evil.example/x www\.evil.example") == 2
    assert "<https://evil" not in markdown
    for text in (report, markdown, page.text):
        assert not set(text) & {"\x1b", "\x00", "\u202e", "\ud800"}
        assert "a[2Jb" in text.replace("\\", "")
    four = facts(peers=peers)
    assert four.peers[3].name == "unnamed"
    assert in_markdown("ftp://a HTTPS://b ratio 1:2", links=False) == r"ftp\://a HTTPS\://b ratio 1:2"


def test_two_peers_of_one_name_are_told_apart() -> None:
    view = peers_view(facts(peers=[peer("me", peer="a" * 16), peer("me", peer="b" * 16), peer("you")]))
    assert [row[0] for row in view.table.rows] == ["me (aaaaaaaa)", "me (bbbbbbbb)", "you"]
    assert "me (bbbbbbbb) 49.7" in view.summary


def test_the_sentence_fits_what_happened() -> None:
    alone = summary(
        peers=[peer(share=1.0)],
        groups={"1": 700},
        final={"peers": ["peer-0"], "distance": None, "bound": 0.001},
    )
    assert alone == (
        "One peer, peer-0, trained alone: it gave all samples of the 700 global steps. At the end there was only one "
        "peer, and so nothing to compare its weights with."
    )
    assert "together: all 700 global steps averaged the gradients of 2 peers" in summary(groups={"2": 700})
    assert "none of the 700 global steps averaged the gradients of more than one peer" in summary(groups={"1": 700})
    many = summary(peers=[peer(f"p{number}", share=share) for number, share in enumerate([0.1, 0.2, 0.5, 0.2])])
    assert many.startswith("Four peers trained together")
    assert "; p2 gave most, 50.0 % of the samples. At the end" in many
    assert "p1" not in many
    assert summary(peers=[peer(str(number)) for number in range(1234)]).startswith("1,234 peers")
    assert "distance of 0 (bound 2.5e-03)" in summary(final={"peers": ["a", "b"], "distance": 0.0, "bound": 0.0025})
    assert "No peer contributed" in summary(peers=[], groups={}, samples=0, step=0)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"groups": {"1": 140, "2": 560}}, []),
        ({"groups": {"1": 141, "2": 559}}, ["few grouped steps"]),
        ({"groups": {"1": 700}}, ["no groups"]),
        ({"groups": {"1": 700}, "peers": [peer(share=1.0)]}, []),
        ({"peers": [peer(share=0.8), peer(share=0.2)]}, []),
        ({"peers": [peer(share=0.81), peer(share=0.19)]}, ["one peer gave most"]),
        ({"outcomes": {"averaged": 526, "no group": 174}}, []),
        ({"outcomes": {"averaged": 525, "no group": 175}}, ["many rounds: no group"]),
        ({"outcomes": {"averaged": 525, "failed": 175}}, ["many rounds: failed"]),
        ({"per_step": {"matching": 0.2, "reducing": 0.2, "computing": 0.4, "seconds": 0.8}}, []),
        ({"per_step": {"matching": 0.3, "reducing": 0.2, "computing": 0.3, "seconds": 0.8}}, ["much communication"]),
        ({"per_step": {"matching": 0, "reducing": 0, "computing": 0, "seconds": 0}}, []),
        ({"end": "deadline"}, ["ended by deadline"]),
    ],
)
def test_cautions_of_the_peers(changes: dict[str, Any], expected: list[str]) -> None:
    assert kinds(**changes) == expected


def test_cautions_say_what_to_change_and_name_no_peer() -> None:
    poor = facts(
        peers=[peer(NASTY, share=0.9), peer(NASTY, share=0.1)],
        groups={"1": 400, "2": 300},
        outcomes={"averaged": 300, "no group": 200, "failed": 200},
        per_step={"matching": 3, "reducing": 3, "computing": 2, "seconds": 8},
    )
    texts = {caution.kind: caution.text.replace("\N{NO-BREAK SPACE}", " ") for caution in peer_cautions(poor)}
    assert "Only 42.9 % of the global steps" in texts["few grouped steps"]
    assert "gave 90.0 % of the samples" in texts["one peer gave most"]
    assert "In 28.6 % of the global steps" in texts["many rounds: no group"]
    assert "raise pretraining.collaborative.matchmaking_seconds" in texts["many rounds: no group"]
    assert "raise pretraining.collaborative.averaging_timeout_seconds" in texts["many rounds: failed"]
    assert "75.0 %" in texts["much communication"]
    assert "a larger pretraining.batch_size" in texts["much communication"]
    assert len(texts) == 5
    assert "img" not in "".join(texts.values())


def test_a_ledger_that_lacks_a_figure_is_named(tmp_path: Path) -> None:
    inputs = build_artifacts(tmp_path, ledger=ledger(end="boredom"))
    with pytest.raises(StageError, match=r"ledger.json: end: .*run pretrain again"):
        collect(settings(), inputs)
    file = inputs["pretrain"] / "logs/ledger.json"
    file.write_text("{")
    with pytest.raises(StageError, match=r"ledger.json: does not parse"):
        read_ledger(inputs["pretrain"])
    lost = {"peers": ["a", "b"], "distance": float("nan"), "bound": 0.001}
    file.write_text(json.dumps(ledger(final=lost)))
    found = read_ledger(inputs["pretrain"])
    assert found is not None
    assert "is not recorded" in peers_view(found).summary
    file.unlink()
    assert read_ledger(inputs["pretrain"]) is None


def test_the_section_is_accessible(tmp_path: Path) -> None:
    html = report_in(tmp_path, ledger=ledger(end="deadline"))[2]
    ids = [value for _, name, value in Page(html).attributes if name == "id"]
    assert len(ids) == len(set(ids))
    section = re.search(r'(?s)<section aria-labelledby="peers">.*?</section>', html)
    assert section is not None
    assert '<h2 id="peers">' in section[0]
    assert 'role="region" aria-labelledby="peers-table" tabindex="0"' in section[0]
    assert section[0].count('<th scope="row">') == 2
    assert section[0].count('<th scope="col"') == 10
    assert '<p class="warning" role="note">' in section[0]


@pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)
def test_a_browser_shows_a_nasty_name_as_text(tmp_path: Path) -> None:
    html = report_in(tmp_path, ledger=ledger(peers=[peer(NASTY), peer("</table><script>x()</script>")]))[2]
    shown = shown_by_a_browser(html, tmp_path)
    assert 'id="peers"' in shown
    assert "&lt;/table&gt;&lt;script&gt;x()&lt;/script&gt;" in shown
    assert "<img" not in shown
    assert "<script" not in shown


def test_the_chart_has_a_bar_a_peer_and_what_was_lost(tmp_path: Path) -> None:
    lost = [peer("peer-0", lost=1000), peer("peer-1", peer="cd34ef56ab78ab12", samples=90420, share=0.6667)]
    html = report_in(tmp_path, ledger=ledger(peers=lost, lost=1000))[2]
    section = re.search(r'(?s)<section aria-labelledby="peers">.*?</section>', html)
    assert section is not None
    bars = [float(width) for width in re.findall(r'class="(?:given|lost)"[^>]*? width="([0-9.]+)"', section[0])]
    assert bars == [206.0, 0.0, 103.0, pytest.approx(1000 / 90420 * 206, abs=0.06)]
    assert "2 peers gave 135,630 samples; the one that gave most 66.7 per cent" in section[0]
    assert "1.1\N{NO-BREAK SPACE}% went into no global step" in section[0]
    assert "went into no global step" not in peers_view(facts()).pace


def test_many_peers_share_the_last_bar_and_names_are_escaped() -> None:
    names = [NASTY, *(f"peer-{number}" for number in range(30))]
    chart = contribution_chart(names, list(range(131, 100, -1)), [0] * 31)
    assert chart.count('class="given"') == MOST_BARS
    assert "12 others" in chart
    assert "<img" not in chart
    assert "&lt;img src=x" in chart


@pytest.mark.parametrize("samples", [[5], [0, 0]])
def test_there_is_no_chart_with_nothing_to_compare(samples: list[int]) -> None:
    assert contribution_chart([f"p{number}" for number in range(len(samples))], samples, [0] * len(samples)) == ""
