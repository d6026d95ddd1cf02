"""Exporting a finished recipe: model, tokenizer and model card, to a folder or for the hub.

What is exported is a list of files that is known before anything is written: the checkpoint's files by name, so that
no trainer state, log or record slips in, and texts made of the public report alone. Every text is searched for this
machine's folders and peers' addresses before it leaves.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tasks import durable, locks
from tasks.contract import StageError, UserError

if TYPE_CHECKING:
    from eval.public_report import Private
    from flows.execution import Prepared
    from flows.plan import Step

CARD, RESULTS, PAGE = "README.md", "results.json", "report.html"

MODEL_FILES = (
    "config.json",
    "model.safetensors",
    "model-*-of-*.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
)
"""What ``from_pretrained`` reads of a checkpoint; nothing else in it is exported."""

PLACES = ("_name_or_path", "name_or_path", "tokenizer_file", "special_tokens_map_file")
"""Keys under which transformers writes where a model was loaded from into its configurations."""

PARTIAL = ".sahajflow-partial"
"""Ending of what an export is still writing; a killed one leaves it, the next one to that folder removes it."""


@dataclass(frozen=True)
class ExportFile:
    """One file of an export, on the disk or made for it."""

    name: str
    content: Path | bytes
    size: int
    sha256: str

    def read(self) -> bytes:
        """All of it."""
        return self.content if isinstance(self.content, bytes) else self.content.read_bytes()


@dataclass(frozen=True)
class Export:
    """What would be exported, and what of the checkpoint would not be."""

    files: tuple[ExportFile, ...]
    left_out: tuple[str, ...]

    def listing(self) -> list[str]:
        """A line for each file: name, size, digest."""
        width = max(len(file.name) for file in self.files)
        lines = [f"{file.name:<{width}} {_size(file.size):>9}  sha256 {file.sha256}" for file in self.files]
        return [*lines, *(f"{name}: stays here, it is no part of a model" for name in self.left_out)]

    @property
    def total(self) -> str:
        """ "7 files, 74.1 MB"."""
        return f"{len(self.files)} files, {_size(sum(file.size for file in self.files))}"


def _size(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 100_000 else f"{size / 1e3:,.1f} kB"


def collect(prepared: Prepared, repository: str | None, *, page: bool) -> Export:
    """The files of an export, of a recipe whose report is up to date; nothing is written.

    Args:
        prepared: the whole chain's plan.
        repository: ``owner/name`` that the card's code loads from; None for a folder.
        page: add the report's page.

    Raises:
        UserError: there is no up-to-date report, or a text would tell a folder of this machine or an address.
        StageError: a file of the checkpoint is damaged, or the report lacks something.
    """
    from eval.model_card import model_card
    from eval.public_report import private_facts, public_report
    from eval.rendering import to_html
    from eval.report import read_report

    steps = {step.node.name: step for step in prepared.steps}
    report_step = steps["report"]
    if report_step.action != "reuse" or report_step.path is None:
        options = prepared.options
        raise UserError(f"{options.recipe}: has no up-to-date report; {options.run_command()} makes it")
    report = read_report((report_step.path / "report.json").read_text(encoding="utf-8"))
    publishing = prepared.recipe.publishing
    private = private_facts(report, [str(prepared.store.root), str(Path.home())])
    public = public_report(report, private, peer_names=publishing.peer_names)
    texts = {
        CARD: model_card(public, publishing, repository),
        RESULTS: public.results.model_dump_json(indent=1) + "\n",
        **({PAGE: to_html(public)} if page else {}),
    }
    made = [_of_bytes(name, text.encode()) for name, text in texts.items()]
    taken, left_out = model_files(steps["pretrain"])
    for file in (*made, *taken):
        _check_private(file, private)
    return Export((*made, *taken), left_out)


def _of_bytes(name: str, content: bytes) -> ExportFile:
    return ExportFile(name, content, len(content), hashlib.sha256(content).hexdigest())


def model_files(step: Step) -> tuple[list[ExportFile], tuple[str, ...]]:
    """The checkpoint's files as they are recorded, their configurations without places; and what is left out."""
    assert step.path is not None
    assert step.record is not None
    taken, left_out = [], []
    for path in durable.files_in(step.path / "checkpoint"):
        name = path.relative_to(step.path / "checkpoint").as_posix()
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in MODEL_FILES):
            left_out.append(name)
            continue
        output = step.record.outputs.get(f"checkpoint/{name}")
        digest = durable.sha256_of(path)
        if output is None or digest != output.sha256:
            raise StageError(f"{path}: is not what was published; sahajflow run with --verify finds it and mends it")
        file = ExportFile(name, path, output.bytes, digest)
        cleaned = _without_places(file)
        taken.append(file if cleaned is None else _of_bytes(name, cleaned))
    return taken, tuple(left_out)


def _without_places(file: ExportFile) -> bytes | None:
    """A configuration without the places it was loaded from; None if it has none, or is none."""
    if file.name not in {"config.json", "tokenizer_config.json"}:
        return None
    values = json.loads(file.read())
    kept = {key: value for key, value in values.items() if key not in PLACES}
    return None if kept == values else (json.dumps(kept, ensure_ascii=False, indent=2) + "\n").encode()


def _check_private(file: ExportFile, private: Private) -> None:
    if file.name.endswith(".safetensors"):
        # Its header is JSON, after its length as eight bytes: huggingface.co/docs/safetensors
        assert isinstance(file.content, Path)
        with file.content.open("rb") as stream:
            text = stream.read(int.from_bytes(stream.read(8), "little")).decode("utf-8", "replace")
    else:
        text = file.read().decode("utf-8", "replace")
    if found := private.found(text):
        raise UserError(f"{file.name}: would tell {found}, which is this machine's or a peer's; take it out first")


def write_folder(export: Export, to: str, store_root: Path, *, force: bool) -> int:
    """Write an export; a new folder appears at once and complete, in one that exists each file does.

    Args:
        export: what to write.
        to: the folder; other files in it stay as they are.
        store_root: the store, in which nothing may be written, and whose lock keeps two exports apart.
        force: replace files that differ.

    Returns:
        How many files were written; 0 if all were there already.

    Raises:
        UserError: the place is none for it, or files that differ are there.
        StageError: what was written is not what was read.
    """
    folder = _folder(to)
    if folder.is_relative_to(store_root.resolve()):
        raise UserError(f"--to {folder}: lies in the store, whose content only stages change; name another folder")
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()
    with locks.held(store_root / "locks" / f"export-{name[:16]}.lock"):
        wanted = [file for file in export.files if not _is_there(file, folder / file.name)]
        differing = [file.name for file in wanted if os.path.lexists(folder / file.name)]
        if differing and not force:
            raise UserError(
                f"--to {folder}: has other content in {', '.join(differing)}; --force replaces it; or name another "
                "folder"
            )
        if wanted:
            _write(wanted, folder)
        return len(wanted)


def _folder(to: str) -> Path:
    """The folder that the user means, behind all links; made up to its last part.

    Raises:
        UserError: there can be none.
    """
    try:
        folder = Path(os.path.realpath(Path(to).expanduser()))
        folder.parent.mkdir(parents=True, exist_ok=True)
    except RuntimeError:
        raise UserError(f"--to {to}: there is no such user; name a folder") from None
    except (OSError, ValueError) as error:  # a file on the way, no permission; a name with a NUL
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"--to {to}: cannot be made ({reason}); name another folder") from None
    if not to or not folder.name:
        raise UserError(f"--to {to or repr(to)}: name a folder")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--to {to}: is a file; name a folder")
    return folder


def _is_there(file: ExportFile, path: Path) -> bool:
    return path.is_file() and path.stat().st_size == file.size and durable.sha256_of(path) == file.sha256


def _write(files: Sequence[ExportFile], folder: Path) -> None:
    new = not folder.exists()
    # Beside a new folder, so that one rename makes it; inside one that exists, which may be a disk of its own.
    beside, inside = folder.with_name(f".{folder.name}{PARTIAL}"), folder / PARTIAL
    for left in (beside, inside):
        durable.remove(left)
    partial = beside if new else inside
    partial.mkdir()
    try:
        for file in files:
            if (folder / file.name).is_dir():
                raise UserError(f"--to {folder}: {file.name} is a folder there; move it away")
            _write_file(file, partial / file.name)
        durable.sync_tree(partial)
        if new:
            durable.move(partial, folder)
        else:
            for file in files:
                durable.move(partial / file.name, folder / file.name)
    finally:
        durable.remove(partial)


def _write_file(file: ExportFile, path: Path) -> None:
    try:
        if isinstance(file.content, bytes):
            path.write_bytes(file.content)
        else:
            shutil.copyfile(file.content, path)
    except OSError as error:  # a full disk names no file
        raise StageError(f"{path}: cannot be written ({error.strerror}); free space, or name another folder") from None
    if durable.sha256_of(path) != file.sha256:
        raise StageError(f"{path}: is not what was read; the disk may be damaged, try another one")
