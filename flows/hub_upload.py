"""Uploading an export to the Hugging Face hub: checked first, then one commit on top of what was looked at.

One ``create_commit`` and not ``upload_folder``, which may split its files over several commits (huggingface_hub 2.4
with hf_xet), so that for a moment, or after a broken connection, new weights stand beside an old configuration; and it
would upload a folder, where here the very files go that were listed. The token is the environment's or the login's;
it is handed on and never shown.

The card's metadata are checked by the hub when the commit begins, before any file is sent: the client's own
``ModelCard.validate`` asks huggingface.co in version 0.36, whatever hub is meant.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tasks.contract import StageError, UserError

if TYPE_CHECKING:
    from flows.export import Export, ExportFile

HUBS_OWN = {".gitattributes"}
"""Files that the hub itself puts into a new repository."""

_CONNECTIONS = ("httpx", "httpcore", "requests", "urllib3")
"""Beginnings of the modules whose errors say that the hub was not reached; the client changed its library."""

_REFUSED_CARD = "Invalid metadata in README.md."
"""How the client begins what the hub says about a card's metadata."""


def check_name(repository: str) -> None:
    """Raise :class:`UserError` unless this is ``owner/name`` as the hub takes it."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        if repository.count("/") != 1:
            raise HFValidationError("should be owner/name")
        validate_repo_id(repository)
    except HFValidationError as error:
        raise UserError(f"--hub {repository}: {_line(error)}") from None


def address(repository: str) -> str:
    """The page of a repository, at the hub that ``$HF_ENDPOINT`` names or the public one."""
    from huggingface_hub import constants

    return f"{constants.ENDPOINT}/{repository}"


def upload(export: Export, repository: str, message: str, *, private: bool, force: bool) -> str | None:
    """Bring a repository to hold an export.

    Args:
        export: what it is to hold; files in it under other names stay.
        repository: ``owner/name``; it is created if there is none.
        message: of the commit.
        private: whether it is, or is to be made, private.
        force: replace files that differ, and do not mind others.

    Returns:
        The address of the commit; None if everything was there already.

    Raises:
        UserError: no token, one that is refused, metadata that the hub refuses, or other content in the repository.
        StageError: the hub is not reached, or does not do it.
    """
    from huggingface_hub import CommitOperationAdd, HfApi, get_token
    from huggingface_hub.errors import RepositoryNotFoundError

    token = get_token()
    if token is None:
        raise UserError("no token for the hub: set HF_TOKEN to one that may write, or log in with: hf auth login")
    api = HfApi(token=token)
    with _told(repository, token):
        api.whoami()
        try:
            found = api.model_info(repository, files_metadata=True)
        except RepositoryNotFoundError:
            api.create_repo(repository, private=private)
            found = api.model_info(repository, files_metadata=True)
        if private and not found.private:
            raise UserError(
                f"--private: {repository} is public already; change that on its page, or leave --private out"
            )
        wanted = _wanted(export, found.siblings or [], repository, force=force)
        if not wanted:
            return None
        operations = [
            CommitOperationAdd(file.name, file.content if isinstance(file.content, bytes) else str(file.content))
            for file in wanted
        ]
        commit = api.create_commit(repository, operations, commit_message=message, parent_commit=found.sha)
        return str(commit.commit_url)


def _wanted(export: Export, there: list[Any], repository: str, *, force: bool) -> list[ExportFile]:
    """The files that the repository lacks or has otherwise.

    Raises:
        UserError: it has content that is not ours, and not everything of ours.
    """
    remote = {file.rfilename: file for file in there}
    wanted = [file for file in export.files if file.name not in remote or not _same(file, remote[file.name])]
    ours = {file.name for file in export.files}
    differing = [file.name for file in wanted if file.name in remote]
    others = sorted(remote.keys() - ours - HUBS_OWN)
    if wanted and (differing or others) and not force:
        told = [f"{name} (differs)" for name in differing] + [f"{name} (not of this export)" for name in others]
        more = f" and {len(told) - 5} more" if len(told) > 5 else ""
        raise UserError(
            f"{repository}: has other content: {', '.join(told[:5])}{more}; --force replaces what differs, in a new "
            "commit, and leaves the rest; or choose another name"
        )
    return wanted


def _same(file: ExportFile, remote: Any) -> bool:
    """Whether the hub has these bytes: it tells the SHA-256 of large files, git's own digest of others."""
    from huggingface_hub.utils.sha import git_hash

    if remote.size is not None and remote.size != file.size:
        return False
    if remote.lfs is not None:
        return bool(remote.lfs.sha256 == file.sha256)
    return bool(remote.blob_id == git_hash(file.read()))


@contextmanager
def _told(repository: str, token: str) -> Iterator[None]:
    """What the client raises as one line each, in which the token is never seen."""
    try:
        yield
    except (UserError, StageError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise  # of a file here
        expected = isinstance(error, OSError | RuntimeError | ValueError)
        if not expected and not type(error).__module__.startswith(_CONNECTIONS):
            raise
        raise _in_one_line(error, repository, _line(error, token)) from None


def _in_one_line(error: Exception, repository: str, told: str) -> UserError | StageError:
    from huggingface_hub.errors import OfflineModeIsEnabled

    # Not every error with an answer is the client's own: version 0.36 raises that of `requests` for a wrong token.
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status == 401:
        return UserError("the hub refuses the token: it is wrong or has expired; make a new one")
    if status == 403:
        return UserError(f"{repository}: the token may not write there; use one that may: {told}")
    if status == 412:
        return StageError(f"{repository}: was changed by someone else meanwhile; look at it and try again")
    if isinstance(error, OfflineModeIsEnabled):
        return UserError("HF_HUB_OFFLINE is set, so nothing can be uploaded; unset it")
    if told.startswith(_REFUSED_CARD):
        reason = told.removeprefix(_REFUSED_CARD).strip(" -")
        return UserError(f"README.md: the hub refuses its metadata: {reason}; mend the recipe's publishing")
    if status is not None:
        return StageError(f"{repository}: the hub answers {status}: {told}")
    return StageError(f"the hub is not reached, or the connection broke: {told}; try again")


def _line(error: BaseException, token: str | None = None) -> str:
    told = getattr(error, "server_message", None) or str(error) or type(error).__name__
    line = " ".join(str(told).split())
    return (line.replace(token, "[token]") if token else line)[:300]  # in this order: a token must not be cut in two
