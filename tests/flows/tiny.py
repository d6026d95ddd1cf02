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
    "pretraining.engine=local",
    "pretraining.steps=40",
    "pretraining.warmup_steps=4",
    "pretraining.batch_size=8",
    "pretraining.accumulation=1",
    "pretraining.learning_rate=2.0e-3",
    "pretraining.precision=fp32",
    "pretraining.checkpoint_every=5",
    "pretraining.validate_every=20",
    "evaluation.seeds=1",
    "evaluation.models=[pretrained]",
    "evaluation.at_once=1",  # processes of their own take longer to start than these seed runs
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


def processes_of(home: Path) -> list[str]:
    """The command lines of all processes that were started with this home, and of their children."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes().split(b"\0")
            if f"SAHAJFLOW_HOME={home}".encode() in environment:
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


COLLABORATIVE = (
    *(setting for setting in SETTINGS if not setting.startswith("pretraining.")),
    "corpus.validation_fraction=0.1",  # enough masked tokens that what a model of 24 steps guesses is among them
    "pretraining.engine=collaborative",
    "pretraining.steps=24",
    "pretraining.warmup_steps=2",
    "pretraining.learning_rate=2.0e-3",
    "pretraining.batch_size=1024",  # a global step has to take a while: a peer does thousands of samples a second
    "pretraining.accumulation=16",
    "pretraining.precision=fp32",
    "pretraining.checkpoint_every=6",
    "pretraining.validate_every=12",
    "pretraining.validation_blocks=64",
    "pretraining.collaborative.matchmaking_seconds=0.05",
    "pretraining.collaborative.averaging_timeout_seconds=5",
    "pretraining.collaborative.average_state_every=6",
)
"""Two peers that train together for half a minute."""
