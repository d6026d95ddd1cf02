"""Shapes, words and settings of the tiny seed runs that several modules test."""

from tasks.pretraining.settings import ModelSettings

WORDS = {"PER": ["রবি", "মিতা", "করিম"], "LOC": ["ঢাকা", "খুলনা", "যশোর"], "O": ["আজ", "যায়", "দেখে", "এবং"]}
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TUNING = {"epochs": 2, "learning_rate": 3e-3, "max_length": 16, "batch_size": 8}
BERT = ModelSettings(architecture="bert", hidden_size=32, layers=2, heads=2, intermediate_size=64, max_positions=32)
ALBERT = BERT.model_copy(update={"architecture": "albert", "embedding_size": 16})
