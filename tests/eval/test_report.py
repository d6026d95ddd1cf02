"""The report stage on fake but realistic artifacts, in the records' real format."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from eval.charts import nice_ticks
from eval.rendering import in_markdown, linked
from eval.report import STAGE, collect, render
from eval.report_schema import Report
from eval.report_wording import verdict
from eval.results import MissingSeed, Results
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
    task_result,
    training_log,
)


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, str]:
    return report_in(tmp_path_factory.mktemp("usual"))


def test_page_holds_everything_in_order(usual: tuple[str, str, str]) -> None:
    page = Page(usual[2])
    order = [
        "my-language",
        "Pretraining clearly helps on some tasks but not on all",
        "74.58 ± 0.47",
        "seed 0: 74.52",
        "F1, strict IOB2",
        "ORG",
        "words by tag; rows are what they are",
        "unigram entropy 6.94",
        "tokens per word",
        "sentence-pairs",
        "উইকিপিডিয়া (Wikipedia bn)",
        "25 min 24 s",
        "20 seed runs (fine-tuning)",
        "0123456789abcdef0123456789abcdef01234567",
        "sequence_length: 128",
        "What to be careful about",
        "soham-ncc, random, seed 3: one class only",
    ]
    places = [page.text.index(order[0])]
    for text in order[1:]:
        places.append(page.text.index(text, places[-1]))
    for text in ["sample std, n - 1", "17.21", "4,812,345", "99.74 %", "91.97 ± 0.47", "2026-03-04 05:06 UTC", "bf16"]:
        assert text in page.text
    assert "not left the plateau" not in page.text


def test_page_is_accessible(usual: tuple[str, str, str]) -> None:
    html = usual[2]
    page = Page(html)
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    for _, name, value in page.attributes:
        if name == "aria-labelledby":
            assert set((value or "").split()) <= set(ids)
        if name == "href" and (value or "").startswith("#"):
            assert value[1:] in ids  # type: ignore[index]
    assert html.count("<table") == html.count("<caption")
    assert all(re.match(r'<th scope="(col|row)"', tag) for tag in re.findall(r"<th\b[^>]*>", html))
    for drawing in re.findall(r"(?s)<svg.*?</svg>", html):
        hidden = "aria-hidden" in drawing
        assert hidden or "<title" in drawing or 'class="bar"' in html[: html.index(drawing)][-60:]
    levels = [int(level) for level in re.findall(r"<h(\d)", html)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_page_loads_nothing(usual: tuple[str, str, str]) -> None:
    html = usual[2]
    for tag, name, value in Page(html).attributes:
        assert name != "src"
        assert not name.startswith("on")
        if name in {"href", "action"} and not (value or "").startswith("#"):
            assert tag == "a"
            assert (value or "").startswith("https://huggingface.co/")
    assert "<script" not in html
    assert "<link" not in html
    assert not re.search(r"@import|url\(", html)


def test_one_run_has_no_plus_minus(tmp_path: Path) -> None:
    scores = {"pretrained": [0.75], "random": [0.61]}
    task = task_result("wikiann-bn", "ner", scores, published=())
    report, markdown, html = report_in(tmp_path, results=Results(tasks=(task,)))
    for text in (Page(html).text, markdown):
        table = text[text.index("measured here") : text.index("majority baseline")]
        assert "75.00" in table
        assert "±" not in table
        assert "sample std" not in table
        assert "sample standard deviation" not in text
    assert "Too few runs to say" in json.loads(report)["verdict"]
    assert [caution["kind"] for caution in json.loads(report)["cautions"]].count("one seed") == 1


def test_intervals_and_comparisons_are_shown_with_what_they_mean(usual: tuple[str, str, str]) -> None:
    _, markdown, html = usual
    scores = next(table for table in markdown_tables(markdown) if "each seed's score" in table[0][-1])
    titles = [cell.strip() for cell in scores[0]]
    cells = dict(zip(titles, (cell.strip() for cell in scores[2]), strict=True))
    # t(0.975; 4) = 2.776 times 0.0047, over sqrt(5), around 0.7458
    assert cells["other seeds, 95 %"] == "74.00 to 75.16"
    assert cells["other test items, 95 %"] == "71.91 to 77.18"
    comparisons = next(table for table in markdown_tables(markdown) if "p, corrected" in table[0][-2])
    assert [cell.strip() for cell in comparisons[2]] == [
        *("pretrained against random", "13.36", "11.36 to 15.36", *["&lt; 0.001"] * 3, "more"),
    ]
    text = Page(html).text
    assert "Other seeds could give 74.00 to 75.16; other test items could give 71.91 to 77.18." in text
    assert "pretrained against random" in text
    for shown in (text, markdown):
        assert "That no difference is shown does not say that there is none." in shown


def test_degenerate_and_missing_runs_are_shown(tmp_path: Path) -> None:
    scores = {"pretrained": [0.88, 0.87, 0.89], "random": [0.79, 0.1667, 0.80]}
    failed = {"pretrained": [MissingSeed(seed=7, reason="OutOfMemoryError: | 3 GiB")]}
    task = task_result("soham-ncc", "classification", scores, missing=failed)
    report, markdown, html = report_in(tmp_path, results=Results(tasks=(task,)))
    text = Page(html).text
    without = "79.50 ± 0.71 (n = 2)"
    assert f"Without runs that learnt nothing: {without}." in text
    assert f"| random, without runs that learnt nothing | {without} |" in markdown
    assert "seed 7: missing OutOfMemoryError: | 3 GiB" in text
    assert "| 3/4 |" in markdown
    important = [caution for caution in json.loads(report)["cautions"] if caution["important"]]
    assert [caution["kind"] for caution in important] == ["missing run"]
    assert "The mean is over 3 of 4 declared seeds" in important[0]["text"]
    assert important[0]["text"] in text[: text.index("Scores")]


def test_what_users_wrote_is_escaped(tmp_path: Path) -> None:
    name = '<script>alert("x")</script> | *a* `b` & ক্ষ'
    _, markdown, html = report_in(tmp_path, name=name)
    assert "<script" not in html
    assert name in Page(html).text
    assert "<script" not in markdown.split("```")[0]
    assert r"&lt;script&gt;" in markdown.splitlines()[0]
    assert r"\| \*a\* \`b\` &amp; ক্ষ" in markdown.splitlines()[0]
    # The recipe contains a fence of three backticks, so the block around it needs four.
    assert markdown.count("\n````") == 2


def test_markdown_tables_are_well_formed(tmp_path: Path) -> None:
    metrics = {"corpus": {"sources": {"a|b\nc": {"documents": 1, "characters": 2, "empty_dropped": 0}}}}
    markdown = report_in(tmp_path, metrics=metrics)[1]
    tables = markdown_tables(markdown)
    assert len(tables) == 23
    for table in tables:
        assert len({len(row) for row in table}) == 1
        assert all(re.fullmatch(r" (:---|---:) ", cell) for cell in table[1])
    assert "| a\\|b c |" in markdown


def test_rendering_the_stored_report_gives_the_stored_bytes(usual: tuple[str, str, str]) -> None:
    report, markdown, html = usual
    assert render(report) == (markdown, html)
    assert "NaN" not in report


def test_reference_tokenizers_stand_beside_the_tokenizer(tmp_path: Path) -> None:
    card = {"entries": 32000, "tokens_per_word": 1.804, "tokens_per_byte": 0.0941, "unknown_rate": 0.00123}
    card |= {"vocabulary_in_use": 0.5, "held_out_words": 7}
    metrics = {"tokenizer": {"references": {"sahaj|BERT <2021>": card}}}
    report, markdown, html = report_in(tmp_path, metrics=metrics)
    assert json.loads(report)["tokenizer"]["references"]["sahaj|BERT <2021>"]["tokens_per_word"] == 1.804
    text = Page(html).text
    table = text[text.index("Tokenizer, measured") : text.index("Packing: blocks")]
    for figure in ("this tokenizer", "sahaj|BERT <2021>", "1.712", "1.804", "0.0941", "0.12"):
        assert figure in table
    line = next(line for line in markdown.splitlines() if "tokens per word" in line)
    assert line.index("1.712") < line.index("1.804") < line.index("1 would be")


def test_plateau_is_said_at_the_top_and_at_the_curve(tmp_path: Path) -> None:
    metrics = {"pretrain": {"left_plateau": False, "validation_loss": 6.89}}
    report, markdown, html = report_in(tmp_path, metrics=metrics, log=training_log(1170, plateau=True))
    text = Page(html).text
    assert "has not left the plateau" in text[: text.index("Scores")]
    assert "has not left the plateau" in text[text.index("Validation during") - 3000 : text.index("Validation during")]
    assert "has not left the plateau" in markdown[: markdown.index("## Scores")]
    assert json.loads(report)["cautions"][0]["kind"] == "plateau"


def test_cautions_follow_from_the_figures(tmp_path: Path) -> None:
    few = task_result("poets", "classification", {"pretrained": [0.6, 0.62, 0.64]}, items={"train": 900, "test": 200})
    metrics = {"tokenizer": {"unknown_rate": 0.0123}, "pretrain": {"validation_loss": float("nan")}}
    report = json.loads(report_in(tmp_path, results=Results(tasks=(few,)), metrics=metrics, dirty=True)[0])
    kinds = [caution["kind"] for caution in report["cautions"]]
    assert kinds == [
        "loss not a number",
        "few seeds",
        "no comparison",
        "labelled data",
        "published on other data",
        "small test split",
        "dropped documents",
        "dropped tokens",
        "unknown tokens",
        "dirty git tree",
    ]
    texts = " ".join(caution["text"] for caution in report["cautions"])
    for text in [
        "with 3 runs",
        "12,000 tokens of the train split (0.25 %)",
        "1.23 %",
        "200 items",
        "30 of 1,000 test",
        "no digest",
    ]:
        assert text in texts


@pytest.mark.parametrize(
    ("ner", "ncc", "opening"),
    [
        (
            {"pretrained": [0.8, 0.81], "random": [0.5, 0.51]},
            {"pretrained": [0.9, 0.91], "random": [0.7, 0.71]},
            "Pretraining helps:",
        ),
        (
            {"pretrained": [0.8, 0.81], "random": [0.5, 0.51]},
            {"pretrained": [0.7, 0.8], "random": [0.7, 0.71]},
            "Pretraining clearly helps on some tasks",
        ),
        (
            {"pretrained": [0.8, 0.81], "random": [0.5, 0.51]},
            {"pretrained": [0.5, 0.51], "random": [0.7, 0.71]},
            "Pretraining helps on some tasks and makes others worse",
        ),
        (
            {"pretrained": [0.5, 0.51], "random": [0.5, 0.52]},
            {"pretrained": [0.7, 0.8], "random": [0.7, 0.71]},
            "No clear benefit",
        ),
        (
            {"pretrained": [0.5, 0.51], "random": [0.8, 0.81]},
            {"pretrained": [0.7, 0.8], "random": [0.7, 0.71]},
            "Pretraining does not help, and",
        ),
        (
            {"pretrained": [0.8], "random": [0.5]},
            {"pretrained": [0.9], "random": [0.7]},
            "Too few runs to say whether pretraining helps",
        ),
        ({"pretrained": [0.8, 0.81]}, {"pretrained": [0.9, 0.91]}, "No model without pretraining was measured"),
    ],
)
def test_verdict(ner: dict[str, list[float]], ncc: dict[str, list[float]], opening: str) -> None:
    tasks = (task_result("n", "ner", ner), task_result("c", "classification", ncc))
    sentence = verdict(Results(tasks=tasks))
    assert sentence.startswith(opening)
    assert sentence.endswith(".")
    if opening == "Pretraining helps:":
        assert (
            "(n) the model scores 80.50 out of 100 with pretraining and 50.50 without (30.00 points more)" in sentence
        )


def test_curve_is_thinned_and_the_later_line_of_a_step_counts(tmp_path: Path) -> None:
    log = [{"step": step, "mlm_loss": 9.0} for step in range(1, 1000)]
    log[3]["mlm_loss"] = float("nan")
    log += [{"step": step, "mlm_loss": 2.0} for step in range(500, 1001)]
    curve = collect(settings(), build_artifacts(tmp_path, log=log)).pretraining
    assert len(curve.training_curve) == 250
    assert curve.training_curve[-1].step == 1000
    assert curve.training_curve[-1].mlm_loss == 2.0
    assert curve.training_curve[0].mlm_loss == 9.0


def test_lines_of_one_step_are_one_and_the_later_wins_key_by_key(tmp_path: Path) -> None:
    log = [
        {"step": 1, "mlm_loss": 9.0},
        {"step": 2, "mlm_loss": 8.0, "validation_loss": 8.5, "validation_sop_accuracy": 0.6},
        {"step": 3, "mlm_loss": 7.0, "note": "two\u2028lines"},
        {"step": 1, "validation_loss": 9.5, "validation_sop_accuracy": None},
        # The run was killed and continued after step 1.
        {"step": 2, "mlm_loss": 4.0},
        {"step": 2, "validation_loss": 4.5},
    ]
    inputs = build_artifacts(tmp_path, log=log)
    file = inputs["pretrain"] / "logs/training.jsonl"
    file.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in log), encoding="utf-8")
    curve = collect(settings(), inputs).pretraining
    assert [(point.step, point.mlm_loss) for point in curve.training_curve] == [(1, 9.0), (2, 4.0), (3, 7.0)]
    validations = [
        (point.step, point.validation_loss, point.validation_sop_accuracy) for point in curve.validation_curve
    ]
    assert validations == [(1, 9.5, None), (2, 4.5, 0.6)]
    file.write_text("")
    assert collect(settings(), inputs).pretraining.training_curve == ()


def test_masked_accuracy_is_drawn_and_in_the_table_where_it_was_logged(tmp_path: Path) -> None:
    log = [
        {"step": 400, "mlm_loss": 8.0, "validation_loss": 8.5},
        {"step": 800, "mlm_loss": 7.0, "validation_loss": 7.5, "masked_accuracy": 0.1, "validation_sop_accuracy": 0.7},
        {"step": 1200, "mlm_loss": 6.0, "validation_loss": 6.5, "masked_accuracy": 0.25},
    ]
    report = collect(settings(), build_artifacts(tmp_path / "with", log=log))
    markdown, html = render(report.model_dump_json())
    assert "From 10.0 per cent at step 800 to 25.0 per cent at step 1,200." in html
    (drawing,) = (svg for svg in re.findall(r"(?s)<svg.*?</svg>", html) if "guessed right" in svg)
    # 10 and 25 of at most 27 per cent, in a frame from 188 up to 22; and two of three times its width
    assert re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', drawing) == [("244.7", "126.5"), ("352.0", "34.3")]
    assert (
        "| 400 | 8.500 | not recorded | not recorded |\n"
        "| 800 | 7.500 | 10.00 | 70.00 |\n"
        "| 1,200 | 6.500 | 25.00 | not recorded |\n"
    ) in markdown
    markdown, html = render(collect(settings(), build_artifacts(tmp_path / "without", log=log[:1])).model_dump_json())
    assert "guessed right" not in markdown + html


def test_a_report_without_a_log_or_a_seed_run_still_stands(tmp_path: Path) -> None:
    inputs = build_artifacts(tmp_path)
    assert collect(settings(), inputs).seed_run_seconds == 430.0
    (inputs["pretrain"] / "logs/training.jsonl").unlink()
    shutil.rmtree(tmp_path / "artifacts/seed-run/0000000000000003")
    report = collect(settings(), inputs)
    assert report.seed_run_seconds is None
    assert report.environments[0].stages == ("corpus", "tokenizer", "pack", "pretrain", "evaluate", "seed-run")
    markdown, html = render(report.model_dump_json())
    assert "<figure" not in html
    assert "seed runs (fine-tuning)" not in markdown


def test_missing_figures_are_named(tmp_path: Path) -> None:
    inputs = build_artifacts(tmp_path, metrics={"tokenizer": {"entries": "many"}})
    with pytest.raises(StageError, match=r"record.json of tokenizer: metrics.entries: Input should be"):
        collect(settings(), inputs)
    (inputs["corpus"] / "record.json").unlink()
    with pytest.raises(StageError, match=r"record.json is missing"):
        collect(settings(), inputs)
    with pytest.raises(StageError, match=r"report.json: "):
        render("{}")


def test_progress_and_metrics(tmp_path: Path) -> None:
    seen: list[tuple[float, float]] = []
    figures = STAGE.run(
        settings(), build_artifacts(tmp_path / "in"), tmp_path, lambda done, total, **_: seen.append((done, total))
    )
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert figures["tasks"] == 2
    assert figures["bytes"] == (tmp_path / "report.html").stat().st_size
    assert Report.model_validate_json((tmp_path / "report.json").read_text()).verdict == figures["verdict"]


def test_small_pieces() -> None:
    assert linked("see https://a.org/b?c=1&d=2.") == (
        'see <a href="https://a.org/b?c=1&amp;d=2">https://a.org/b?c=1&amp;d=2</a>.'
    )
    assert "<a" not in linked("javascript:alert(1)")
    assert in_markdown("# a_b") == r"\# a\_b"
    assert in_markdown("1. a") == r"1\. a"
    assert in_markdown("- a") == r"\- a"
    assert in_markdown("2026-03-04") == "2026-03-04"
    assert nice_ticks(0, 4800, 4) == [0, 1000, 2000, 3000, 4000]
    assert nice_ticks(0.31, 0.74, 4) == [0.4, 0.5, 0.6, 0.7]


def _luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_contrast_is_aa_in_light_and_dark(usual: tuple[str, str, str]) -> None:
    """WCAG 2.2: at least 4.5 to 1 for text, 3 to 1 for drawings."""
    screen = usual[2].split("@media print")[0]
    palettes = [
        dict(re.findall(r"--([\w-]+): (#\w{6})", block)) for block in re.findall(r":root \{(.*?)\}", screen, re.S)
    ]
    assert len(palettes) == 2
    for palette in palettes:
        for page in ("page", "raised"):
            for ink, least in [
                ("ink", 4.5),
                ("quiet", 4.5),
                ("link", 4.5),
                ("baseline", 4.5),
                ("pretrained", 3.0),
                ("other", 3.0),
                ("entropy", 4.5),
            ]:
                light, dark = sorted((_luminance(palette[ink]), _luminance(palette[page])), reverse=True)
                assert (light + 0.05) / (dark + 0.05) >= least, (ink, page)
        light, dark = sorted((_luminance(palette["ink"]), _luminance(palette["warning-page"])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5


@pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)
def test_a_browser_shows_it_without_complaint(usual: tuple[str, str, str], tmp_path: Path) -> None:
    assert "What to be careful about" in shown_by_a_browser(usual[2], tmp_path)
