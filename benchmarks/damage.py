"""What published recipes' normalisers do to ten words, as the table of docs/tokenizers.md.

    python benchmarks/damage.py

Joiners, which are invisible, are written <ZWJ> and <ZWNJ>, and a space that a normaliser puts into a word as a box.
"""

from __future__ import annotations

from tasks.tokenizer_building import build_step
from tasks.tokenizer_definition import TokenizerDefinition, load_definition

WORDS = ("র‍্যাব", "কিন্তু", "বাংলা", "চাঁদ", "দুঃখ", "বা\u09dcি", "সময়:", "क्\u200dष", "தமிழ்", "می\u200cخواهم")
"""A joiner, hasanta, anusvara, candrabindu, visarga, a letter with nukta, a colon; Devanagari, Tamil, Persian."""

SAHAJBERT = [
    {"step": "nmt"},
    {"step": "nfkc"},
    {"step": "replace", "regex": " {2,}", "by": " "},
    {"step": "replace", "string": "৤", "by": "।"},
    {"step": "replace", "string": "৥", "by": "॥"},
    {"step": "replace", "string": "|", "by": "।"},
    {"step": "replace", "string": "৷", "by": "।"},
    {"step": "replace", "regex": r"(?<=[\x{0980}-\x{09FF}]):", "by": "ঃ"},
    {"step": "lowercase"},
]

RECIPES = {
    # yandex-research/DeDLOC, sahajbert/tokenizer
    "sahajBERT (2021)": SAHAJBERT,
    # bert-base-uncased, and with it the Gaudi recipe (huggingface/blog, pretraining-bert)
    "BERT uncased": [
        {
            "step": "bert",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        }
    ],
    # ALBERT's SentencePiece clean-up without keep_accents, as IndicBERT was published with (Indic-BERT-v1#26)
    "ALBERT, IndicBERT v1": [{"step": "nfkd"}, {"step": "strip-accents"}, {"step": "lowercase"}],
}


def chains() -> dict[str, TokenizerDefinition]:
    ours = load_definition("bengali-unigram-32k")
    content = ours.model_dump(mode="json")
    return {
        name: TokenizerDefinition.model_validate({**content, "normalizer": steps, "switches": {}})
        for name, steps in RECIPES.items()
    } | {"bengali-unigram-32k": ours}


def visible(text: str) -> str:
    return text.replace(" ", "␣").replace("\u200d", "<ZWJ>").replace("\u200c", "<ZWNJ>").replace("<", "&lt;")


def table() -> str:
    normalizers = {name: [build_step(step) for _, step in chain.steps()] for name, chain in chains().items()}
    lines = [f"| word | {' | '.join(normalizers)} |", "|---" * (len(normalizers) + 1) + "|"]
    for word in WORDS:
        cells = []
        for steps in normalizers.values():
            text = word
            for step in steps:
                text = step.normalize_str(text)
            cells.append(visible(text))
        lines.append(f"| {visible(word)} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
