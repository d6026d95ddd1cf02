"""A model of the Hugging Face hub, fetched or found in the hub's cache: configuration, tokenizer and weights alone."""

from __future__ import annotations

import errno
from pathlib import Path

from eval.compared_settings import TOKENIZER_FILES, WEIGHTS, ComparedModel
from tasks.contract import StageError
from tasks.foreign_text import first_line


def fetched(settings: ComparedModel) -> Path:
    """The folder of the hub's cache that holds the model; its name is the commit.

    Raises:
        StageError: the model cannot be had.
    """
    from huggingface_hub import errors, snapshot_download
    from huggingface_hub.utils import disable_progress_bars, enable_progress_bars
    from huggingface_hub.utils import logging as hub_logging

    assert settings.hub is not None
    small = ["config.json", *TOKENIZER_FILES]
    remedy = "give local: FOLDER with a copy, or leave the model out of evaluation.compare_with"
    verbosity = hub_logging.get_verbosity()
    hub_logging.set_verbosity_error()  # it tells of every try
    disable_progress_bars()
    try:
        # safetensors are asked for first, and PyTorch's own files only of a model that has none
        for weights in ([WEIGHTS[0], WEIGHTS[1], "model-*.safetensors"], [*WEIGHTS[2:], "pytorch_model-*.bin"]):
            folder = Path(
                snapshot_download(settings.hub, revision=settings.revision, allow_patterns=[*small, *weights])
            )
            if any((folder / name).is_file() for name in weights):
                break
    except errors.GatedRepoError:
        raise StageError(
            f"{settings.hub}: its page asks for an account: accept its conditions there and log in with "
            f"`hf auth login`; or {remedy}"
        ) from None
    except errors.RepositoryNotFoundError:
        raise StageError(
            f"{settings.hub}: the hub has no such model, or hides it; check the name, or {remedy}"
        ) from None
    except errors.RevisionNotFoundError:
        raise StageError(f"{settings.hub}: has no commit {settings.revision}; check the revision") from None
    except errors.LocalEntryNotFoundError as error:
        raise StageError(
            f"{settings.hub}: the hub does not answer, and its cache on this machine lacks the model; {remedy}"
        ) from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise StageError(f"{settings.hub}: cannot be fetched ({first_line(error)}); run again, or {remedy}") from error
    finally:
        hub_logging.set_verbosity(verbosity)
        enable_progress_bars()
    return folder
