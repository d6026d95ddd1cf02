"""Words, tokens and labels."""

import sys
from pathlib import Path

from eval.data import Split
from eval.encoding import IGNORED, NO_TOKEN, encode

sys.path.insert(0, str(Path(__file__).parent))


def test_alignment_first_token_empty_and_truncated_words(tokenizer):
    words = ["রবি", "\u200d", "আজ", "ঢাকা", "খুলনা"]
    tags = ["B-PER", "O", "O", "B-LOC", "B-LOC"]
    labels = ("O", "B-PER", "B-LOC")
    whole = encode(Split([words], [tags]), labels, tokenizer, 16)
    assert whole.first_tokens == [[1, NO_TOKEN, 3, 4, 6]]
    assert whole.labels == [[IGNORED, 1, IGNORED, 0, 2, IGNORED, 2, IGNORED, IGNORED]]
    assert (whole.truncated_items, whole.truncated_words, whole.words_without_tokens) == (0, 0, 1)
    cut = encode(Split([words, ["আজ"]], [tags, ["O"]]), labels, tokenizer, 6)
    assert cut.first_tokens == [[1, NO_TOKEN, 3, 4, NO_TOKEN], [1]]
    assert len(cut.input_ids[0]) == 6
    assert (cut.truncated_items, cut.truncated_words, cut.words_without_tokens) == (1, 1, 1)
