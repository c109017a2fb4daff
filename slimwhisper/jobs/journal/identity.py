"""Identifies the model, precision and caches of a job, as its journal records them.

A file counts as done only if it was transcribed with the same settings. That has to be decided
before a model is loaded, so everything here follows from the arguments and the files on disk,
without torch and without the network.

Models:

- A bundled model, a `.pt` file or a Hugging Face folder is identified by its file name and a digest
  of its content, not by its path or the time of its last change.
- One of OpenAI's names is identified by the name. The loader verifies the file's checksum.
- A Hugging Face id is identified by the name. Its revision is unknown until the model is
  downloaded, so new weights under the same id go unnoticed: use `--overwrite True`.

An adapter: by its folder's name and a digest of its content, or by its id; with none, nothing is
recorded.

Options that name files, such as recordings of speakers: the digests of their content, as each group
of options says (`OptionGroup.identify`).

Caches: the two requested forms, and the digest of the file that `calibrate` wrote, if there is one.
The guard may replace a form; its choice depends on the weights, the precision and `--guard_audio`,
of which the last is not recorded.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from slimwhisper.cache.forms import PRESETS, choose_forms
from slimwhisper.checkpoint.names import BUNDLED, HUB_IDS, bundled_file
from slimwhisper.disk import file_digest, folder_digest
from slimwhisper.option_group import groups_of
from slimwhisper.options import Options
from slimwhisper.types import UNNAMED_DTYPES

# of the settings, tokenizer and weights in the folder of a model or an adapter
SUFFIXES = (".json", ".txt", ".safetensors", ".bin")

Precision = dict[str, str]


def identify_job(
    model: str, load: Mapping[str, Any], formats: Sequence[str], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything that the outputs depend on, except the recording and the precision.

    load: the arguments of `load_model`. options: for reading, for decoding and for subtitles, those
    that differ from their defaults. Raises OptionError, and CacheError for a cache file.
    """
    caches = {name: load[name] for name in ("cache", "cross_cache", "self_cache", "cache_dtype")}
    identity: dict[str, Any] = {}
    for group in groups_of(Options, "identify"):  # instead of the names of files
        identity |= group.identify(options)
    return {
        **identify_model(model),
        **identify_adapter(load["adapter"]),
        "cache": identify_caches(**caches),
        "formats": formats,
        **options,
        **identity,
    }


def identify_model(name: str) -> dict[str, str]:
    """A model's name and, if it is on disk under that name, the digest of its content."""
    if name in BUNDLED:
        return {"model": name, "digest": file_digest(bundled_file(name))}
    on_disk = _on_disk(name, "config.json")
    return {"model": name} if on_disk is None else {"model": on_disk[0], "digest": on_disk[1]}


def identify_adapter(adapter: str | None) -> dict[str, list[str]]:
    """The adapter, if there is one: a folder's name and digest, or a hub id. In a list, as
    in older journals.
    """
    if not adapter:
        return {}
    return {"adapters": [" ".join(_on_disk(adapter, "adapter_config.json") or (adapter,))]}


def _on_disk(name: str, marker: str) -> tuple[str, str] | None:
    """The name and digest of a file, or of a folder that has the file `marker`. None if `name` is
    neither, or cannot be read, which the loader reports.
    """
    with suppress(OSError, RuntimeError, ValueError):
        path = Path(name).expanduser()
        if name and path.is_file():
            return path.name, file_digest(path)
        if name and (path / marker).is_file():
            return path.absolute().name, folder_digest(path, SUFFIXES)
    return None


def may_have_settings(name: str) -> bool:
    """Whether a model may have settings of its own, which even a flag's default value overrides."""
    try:
        path = Path(name).expanduser()
        return not path.is_file() and (path.is_dir() or "/" in name or name in HUB_IDS)
    except (OSError, RuntimeError, ValueError):
        return False


def identify_caches(
    cache: str, cross_cache: str | None, self_cache: str | None, cache_dtype: str | None
) -> str:
    """The cross and self forms, such as "e+x", by preset or by flag; for a file of `calibrate`,
    also its digest. Raises OptionError, and CacheError for such a file.
    """
    forms = "+".join(map(str, choose_forms(cache, cross_cache, self_cache, cache_dtype)))
    return forms if cache in PRESETS else f"{forms} {file_digest(Path(cache))}"


def identify_precision(dtype: str, device: str) -> Precision:
    """The precision of a loaded model, as new journal lines record it."""
    return {"dtype": dtype, "device": _device_kind(device)}


def accepted_precisions(dtype: str | None, device: str | None) -> list[Precision]:
    """Every recorded precision that meets the request; None: not specified.

    A dtype given by name is accepted from any device. The default dtype depends on the device, and
    without torch it is unknown whether this machine has a GPU. So for the default, each device's
    own default is accepted: float32 from a CPU, float16 from a GPU. Likewise for "auto", all that
    it may choose.
    """
    chosen = UNNAMED_DTYPES.get(dtype) or dict.fromkeys(("cpu", "gpu"), (str(dtype),))
    if device is not None:
        chosen = dict.fromkeys(chosen, chosen[_device_kind(device)])
    return [{"dtype": name, "device": kind} for kind, names in chosen.items() for name in names]


def _device_kind(device: str) -> str:
    return "cpu" if device.partition(":")[0] == "cpu" else "gpu"
