"""Checkpoints on the Hugging Face Hub: found, and downloaded into its cache.

Nothing of the Hub's library is imported before a Hub id is used.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path

from stentor.arguments.untrusted import Unreadable, parse_json
from stentor.errors import CheckpointError, InvalidRequest, ModelNotFound
from stentor.host.installed import pip_install
from stentor.models.download_log import logged
from stentor.models.families import families
from stentor.models.model_names import (
    CONFIG,
    DUMMY,
    INDEX,
    check,
    did_you_mean,
    folder_of,
    hub_parts,
    local,
)

NOT_LOADED = ("*.md", "*.png", "*.jpg", "*.mp4", "*.wav")
"""Files that no family reads. They are not downloaded, nor are the unused files of the families."""


def directory(model: str | Path) -> Path:
    """A local directory as it is. Otherwise a Hub id, downloaded or found in the local cache. Of a
    repository with several checkpoints only one folder is downloaded. ModelNotFound,
    CheckpointError."""
    check(model)
    path = local(model)
    if os.path.exists(path):
        return path
    repository, folder = hub_parts(str(model))
    folder = folder or folder_of(repository)
    unused = [pattern for family in families() for pattern in family.unused_files]
    with _hub_errors(str(model)):
        from huggingface_hub import snapshot_download

        if folder:
            patterns = [f"{folder}/*"]
        else:
            patterns = None
            # what says which shards the family reads comes first
            files = snapshot_download(repository, allow_patterns=[CONFIG, INDEX])
            unused += _unread_shards(Path(files))
        ignored = [*NOT_LOADED, *unused]
        with logged(
            str(model),
            cached=lambda: cached_bytes(repository),
            total=lambda: _hub_bytes(repository, patterns, ignored),
        ):
            snapshot = snapshot_download(
                repository, allow_patterns=patterns, ignore_patterns=ignored
            )
    return Path(snapshot, folder)


def check_exists(model: str) -> None:
    """ModelNotFound if the Hub has no such model, CheckpointError if it cannot be reached and the
    cache lacks the model, InvalidRequest if torch is missing. Only the configuration is
    downloaded."""
    check(model)
    if model.startswith(DUMMY) or os.path.exists(local(model)):
        return
    if find_spec("huggingface_hub") is None:
        raise InvalidRequest(
            "model", f"{model} needs PyTorch, which is not installed: {pip_install('torch')}"
        )
    repository, _ = hub_parts(model)
    with _hub_errors(model):
        from huggingface_hub import snapshot_download

        snapshot_download(repository, allow_patterns=[CONFIG])


def cached_bytes(repository: str) -> int:
    """Bytes of a repository in the local cache, 0 where it is not there."""
    from huggingface_hub.constants import HF_HUB_CACHE

    blobs = Path(HF_HUB_CACHE, f"models--{repository.replace('/', '--')}", "blobs")
    if not blobs.is_dir():
        return 0
    return sum(blob.stat().st_size for blob in blobs.iterdir())


def _hub_bytes(repository: str, allowed: list[str] | None, ignored: list[str]) -> int:
    """Bytes of the files on the Hub whose names fit the patterns."""
    from huggingface_hub import HfApi

    files = HfApi().model_info(repository, files_metadata=True).siblings or []
    return sum(
        file.size or 0
        for file in files
        if (allowed is None or _fits(file.rfilename, allowed))
        and not _fits(file.rfilename, ignored)
    )


def _fits(name: str, patterns: list[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


@contextmanager
def _hub_errors(name: str) -> Iterator[None]:
    """Raise one sentence in place of what the Hub's library raises."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError:
        raise ModelNotFound(
            f"model {name!r}: accept its terms at https://huggingface.co/{hub_parts(name)[0]}, "
            "then set HF_TOKEN to your token"
        ) from None
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        raise ModelNotFound(
            f"model {name!r}: not a local directory, and the Hub has no such model, or it is private "
            f"and HF_TOKEN is not set. {did_you_mean(name)}`stentor models` lists all"
        ) from None
    except (errors.HfHubHTTPError, OSError) as e:
        raise CheckpointError(f"model {name!r}: {_reason(e)}") from e


def _reason(error: OSError) -> str:
    """Why a download failed."""
    from huggingface_hub import errors

    if error.errno == errno.ENOSPC:
        return "the disk is full: HF_HOME names another folder for downloads"
    if isinstance(error, errors.LocalEntryNotFoundError | ConnectionError):
        return (
            "not a local directory or in the cache, and the Hub cannot be reached: "
            "check the network and HF_ENDPOINT, or download it elsewhere and name its folder"
        )
    if isinstance(error, errors.HfHubHTTPError) and error.response is not None:
        return f"the Hub answers {error.response.status_code}: try again later"
    return f"the download failed: {str(error).splitlines()[0]}"


def _unread_shards(path: Path) -> list[str]:
    """Shards in a directory with config.json and the index that hold no tensor which the family of
    the checkpoint reads. Faults of these files are reported when the model is loaded."""
    try:
        config, index = (parse_json((path / name).read_bytes()) for name in (CONFIG, INDEX))
        shards: dict[str, str] = index["weight_map"]
        architecture = config.get("architecture", config.get("model_type"))
        reads = next((f.reads for f in families() if architecture in f.architectures), ("",))
        return sorted(
            set(shards.values()) - {s for tensor, s in shards.items() if tensor.startswith(reads)}
        )
    except (OSError, Unreadable, KeyError, TypeError, AttributeError):
        return []
