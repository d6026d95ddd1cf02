"""Stage ``compared-model``: a model of others made ready for the seed runs, once for all of them.

It is fetched or read, checked, and left as ``checkpoint/`` like that of our own model: weights of the body as
safetensors in fp32, and a fast tokenizer with the options that are asked for. So the seed runs know nothing of hubs,
and whatever is wrong with a model is said once, before they start. No code that comes with a model is run.
"""

from __future__ import annotations

import errno
import json
import logging
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval.compared_settings import ComparedModel
from eval.hub_model import fetched
from eval.settings import EvaluationSettings
from tasks.contract import SCRATCH, Progress, Stage, StageError, UserError
from tasks.foreign_text import first_line

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

SAMPLE = "কি é"
"""A letter with a vowel sign (Unicode category Mc), and one with an accent: what a tokenizer may drop."""


def check(evaluation: EvaluationSettings) -> None:
    """What can be known to be wrong with local models before anything runs; cheap enough for ``plan``.

    Raises:
        UserError: a folder or file is missing or of no use.
    """
    for name, model in evaluation.compare_with.items():
        if model.folder is None:
            continue
        place = f"evaluation.compare_with.{name}.{'local' if model.hub else 'path'}"
        try:
            model.files_in(model.folder)
            problem = _config_problem(model.folder / "config.json", evaluation)
        except UserError as error:
            raise UserError(f"{place}: {error}") from None
        if problem:
            raise UserError(f"{place}: {problem}")


def run(settings: ComparedModel, inputs: Mapping[str, Path], folder: Path, progress: Progress) -> dict[str, Any]:
    """Make a model ready.

    Args:
        settings: where it is, and its tokenizer's options.
        inputs: none.
        folder: gets ``checkpoint``, which ``transformers`` loads.
        progress: told the steps: files, tokenizer, weights.

    Returns:
        ``commit`` (None for a local model), ``parameters`` of the body, ``architecture``, ``vocabulary`` (entries),
        ``tokenizer`` (its class), ``keeps_accents``, ``weights_left_out`` (heads for other tasks).

    Raises:
        StageError: the model cannot be had, or cannot be used.
    """
    import transformers

    what = settings.hub or "the model"
    progress(0, 3, unit="steps", note=f"files of {what}")
    try:
        source = settings.folder or fetched(settings)
        files = settings.files_in(source)
        if problem := _config_problem(files["config.json"]):
            raise UserError(f"{files['config.json'].parent}: {problem}")
    except UserError as error:
        raise StageError(str(error)) from None
    commit = source.name if settings.folder is None else None  # what the hub's cache names its folders by
    if settings.revision == "main" and commit is not None:
        logger.info("%s: main is commit %s; as revision it would pin the model", what, commit)
    staged = folder / SCRATCH / "model"
    _link(files, staged)
    checkpoint = folder / "checkpoint"
    with _blamed(f"{what}: its configuration"):
        config = transformers.AutoConfig.from_pretrained(staged, trust_remote_code=False)
    if not isinstance(positions := getattr(config, "max_position_embeddings", None), int) or positions < 1:
        raise StageError(f"{what}: {config.model_type} states no number of positions, which a longest item is held to")
    progress(1, 3, unit="steps", note="tokenizer")
    with _blamed(f"{what}: its tokenizer"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            staged, trust_remote_code=False, **settings.tokenizer_options
        )
    if problem := _tokenizer_problem(tokenizer, settings.tokenizer_options, config):
        raise StageError(f"{what}: {problem}")
    keeps_accents = _keeps_accents(tokenizer)
    if not keeps_accents:
        logger.warning(
            "%s: its tokenizer drops accents and vowel signs; keep_accents: true (ALBERT) or strip_accents: false "
            "(BERT) would keep them",
            what,
        )
    tokenizer.save_pretrained(checkpoint)
    progress(2, 3, unit="steps", note="weights")
    parameters, left_out = _save_body(what, staged, config, checkpoint)
    with _blamed(f"{what}: its saved tokenizer"):
        again = transformers.AutoTokenizer.from_pretrained(checkpoint)
    if again(SAMPLE)["input_ids"] != tokenizer(SAMPLE)["input_ids"]:
        raise StageError(f"{what}: its tokenizer gives other tokens once it is saved, so it cannot be used")
    progress(3, 3, unit="steps", note="ready")
    return {
        "commit": commit,
        "parameters": parameters,
        "architecture": config.model_type,
        "vocabulary": len(tokenizer),
        "tokenizer": type(tokenizer).__name__,
        "keeps_accents": keeps_accents,
        "weights_left_out": left_out,
    }


def _config_problem(path: Path, evaluation: EvaluationSettings | None = None) -> str | None:
    """Why a ``config.json`` is of no use, here or in an evaluation, with the remedy."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return "config.json is not JSON; copy the model again"
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        return "config.json names no model_type; it is no model that transformers saved"
    positions = config.get("max_position_embeddings")
    for name, task in (evaluation.tasks if evaluation else {}).items():
        if isinstance(positions, int) and task.fine_tuning.max_length > positions:
            longest = f"evaluation.tasks.{name}.fine_tuning.max_length {task.fine_tuning.max_length}"
            return f"the model has {positions} positions, fewer than {longest}; lower that"
    return None


def _link(files: Mapping[str, Path], folder: Path) -> None:
    """A folder with these files alone, so that nothing else is read: adapters, code, other formats."""
    folder.mkdir(parents=True, exist_ok=True)
    for stale in [path for path in folder.iterdir() if path.name not in files]:
        stale.unlink()
    for name, path in files.items():
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(path.absolute())


@contextmanager
def _blamed(part: str) -> Iterator[None]:
    """What transformers says of a part that it cannot load, in one line; a full disk is not the model's fault."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        first = first_line(error)
        if "trust_remote_code" in str(error):
            first = "it needs code of its own, which is never run; compare with a model that transformers knows"
        raise StageError(f"{part} cannot be loaded: {first}") from error


def _tokenizer_problem(
    tokenizer: PreTrainedTokenizerBase, options: Mapping[str, bool], config: PretrainedConfig
) -> str | None:
    """Why the tokenizer cannot be used, or which option has no effect on it."""
    if not tokenizer.is_fast:
        return f"its tokenizer ({type(tokenizer).__name__}) has no fast form, which alone knows the words of tokens"
    if tokenizer.pad_token_id is None:
        return "its tokenizer has no padding token, so items cannot be put into batches"
    if len(tokenizer) > config.vocab_size:
        return f"its tokenizer has {len(tokenizer):,} entries, its embeddings {config.vocab_size:,} rows"
    found = {
        "keep_accents": _keeps_accents(tokenizer),
        "strip_accents": not _keeps_accents(tokenizer),
        "do_lower_case": _normalised(tokenizer, "A") == "a",
        "add_prefix_space": _byte_level_prefix(tokenizer) is True,
    }
    for name, value in options.items():
        if found[name] != value:
            return f"{name}: {str(value).lower()} has no effect on its tokenizer ({type(tokenizer).__name__})"
    if _byte_level_prefix(tokenizer) is False:
        return "its tokenizer tells words by the space before them; set add_prefix_space: true"
    return None


def _normalised(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    normalizer = tokenizer.backend_tokenizer.normalizer
    return text if normalizer is None else str(normalizer.normalize_str(text))


def _keeps_accents(tokenizer: PreTrainedTokenizerBase) -> bool:
    marks = [unicodedata.category(character)[0] for character in unicodedata.normalize("NFD", SAMPLE)].count("M")
    kept = unicodedata.normalize("NFD", _normalised(tokenizer, SAMPLE))
    return [unicodedata.category(character)[0] for character in kept].count("M") == marks


def _byte_level_prefix(tokenizer: PreTrainedTokenizerBase) -> bool | None:
    """``add_prefix_space`` of a byte-level pre-tokenizer; None for another one."""
    step = json.loads(tokenizer.backend_tokenizer.to_str())["pre_tokenizer"] or {}
    for part in step.get("pretokenizers", [step]):
        if part.get("type") == "ByteLevel":
            return bool(part["add_prefix_space"])
    return None


def _save_body(what: str, staged: Path, config: PretrainedConfig, checkpoint: Path) -> tuple[int, int]:
    """Write the weights of the body in fp32; what the model lacks of it is not made up.

    Returns:
        Its parameters, and how many weights of heads were left out.
    """
    import transformers

    from eval.classifiers import quiet_transformers

    with _blamed(f"{what}: its weights"), quiet_transformers():
        # pickled weights are unpickled as tensors alone, by transformers' own default
        model, loaded = transformers.AutoModel.from_pretrained(
            staged, config=config, trust_remote_code=False, output_loading_info=True
        )
    missing = set(loaded["missing_keys"])
    if lacking := sorted(name for name in missing if "pooler" not in name):
        raise StageError(f"{what}: lacks {len(lacking)} weights of its architecture, such as {lacking[0]}")
    model = model.float()
    weights = {name: weight for name, weight in model.state_dict().items() if name not in missing}
    with quiet_transformers():
        model.save_pretrained(checkpoint, state_dict=weights)
    return sum(weight.numel() for weight in model.parameters()), len(loaded["unexpected_keys"])


STAGE = Stage("compared-model", version=1, settings=ComparedModel, run=run)
