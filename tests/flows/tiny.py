"""The demo made so small that its real stages take seconds, and what runs of it leave behind."""

from pathlib import Path

SETTINGS = (
    "corpus.sources.0.documents=300",
    "tokenizer.vocabulary_size=500",
    "packing.sequence_length=64",
    "packing.blocks_per_shard=100",
    "model.hidden_size=32",
    "model.layers=1",
    "model.heads=2",
    "model.intermediate_size=64",
    "pretraining.steps=40",
    "pretraining.warmup_steps=4",
    "pretraining.batch_size=8",
    "pretraining.precision=fp32",
    "pretraining.checkpoint_every=5",
    "pretraining.validate_every=20",
    "evaluation.seeds=1",
    "evaluation.models=[pretrained]",
    "evaluation.tasks.ner.source={kind: sample, train: 60, validation: 20, test: 20}",
    "evaluation.tasks.ner.fine_tuning.epochs=1",
    "evaluation.tasks.topics.source={kind: sample, train: 60, validation: 20, test: 20}",
    "evaluation.tasks.topics.fine_tuning.epochs=1",
)


def processes_of_session(leader: int) -> list[str]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader:
            found.append(stat.parent.name)
    return found
