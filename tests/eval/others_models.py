"""Tiny models of several architectures with random weights, in the files that the hub has them in."""

from pathlib import Path

import sentencepiece
import torch
import transformers
from tokenizers import ByteLevelBPETokenizer

TEXT = ["রবি আজ ঢাকা যায়", "মিতা আজ খুলনা দেখে", "করিম এবং রবি যশোর যায়", "সে Café দেখে"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = sorted({word for line in TEXT for word in line.split()})
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
ROBERTA = {**SMALL, "max_position_embeddings": 34, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
ARCHITECTURES = ("bert", "albert", "roberta", "xlm-roberta", "electra", "distilbert")


def make(architecture: str, folder: Path, *, binary: bool = False) -> Path:
    """A model as it was pretrained, head included; ``binary`` gives weights as PyTorch's own file."""
    folder.mkdir(parents=True)
    torch.manual_seed(1)
    model = {
        "bert": _bert,
        "albert": _albert,
        "roberta": _roberta,
        "xlm-roberta": _xlm_roberta,
        "electra": _electra,
        "distilbert": _distilbert,
    }[architecture](folder)
    model.save_pretrained(folder)
    if binary:
        (folder / "model.safetensors").unlink()
        torch.save(dict(model.state_dict()), folder / "pytorch_model.bin")
    return folder


def _word_pieces(folder: Path) -> int:
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *WORDS]) + "\n", encoding="utf-8")
    return len(SPECIAL) + len(WORDS)


def _pieces(folder: Path, name: str, **options: object) -> int:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT * 5),
        model_prefix=str(folder / name),
        vocab_size=60,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    (folder / f"{name}.vocab").unlink()
    return 64


def _bert(folder: Path) -> transformers.PreTrainedModel:
    size = _word_pieces(folder)
    return transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=size, max_position_embeddings=32, **SMALL))


def _electra(folder: Path) -> transformers.PreTrainedModel:
    config = transformers.ElectraConfig(
        vocab_size=_word_pieces(folder), max_position_embeddings=32, embedding_size=8, **SMALL
    )
    return transformers.ElectraForPreTraining(config)


def _distilbert(folder: Path) -> transformers.PreTrainedModel:
    config = transformers.DistilBertConfig(
        vocab_size=_word_pieces(folder), max_position_embeddings=32, dim=16, n_layers=1, n_heads=2, hidden_dim=32
    )
    return transformers.DistilBertForMaskedLM(config)


def _albert(folder: Path) -> transformers.PreTrainedModel:
    symbols = ["[CLS]", "[SEP]", "[MASK]"]
    size = _pieces(folder, "spiece", pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, user_defined_symbols=symbols)
    config = transformers.AlbertConfig(vocab_size=size, max_position_embeddings=32, embedding_size=8, **SMALL)
    return transformers.AlbertForPreTraining(config)


def _xlm_roberta(folder: Path) -> transformers.PreTrainedModel:
    size = _pieces(folder, "sentencepiece.bpe", unk_id=0, bos_id=1, eos_id=2)
    return transformers.XLMRobertaForMaskedLM(transformers.XLMRobertaConfig(vocab_size=size, **ROBERTA))


def _roberta(folder: Path) -> transformers.PreTrainedModel:
    tokenizer = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer.train_from_iterator(TEXT, vocab_size=300, special_tokens=special, show_progress=False)
    tokenizer.save_model(str(folder))
    return transformers.RobertaForMaskedLM(transformers.RobertaConfig(vocab_size=300, **ROBERTA))
