"""Counts a job's files, audio and speed, for its progress and its summary."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimwhisper.audio.sources import RemoteFile
from slimwhisper.cache.forms import brief
from slimwhisper.files import InputFile
from slimwhisper.outputs.formats import FORMATS
from slimwhisper.text import clock, escape_line, human_size, shorten

if TYPE_CHECKING:  # a job with nothing to do does not import torch
    from slimwhisper.api import SlimWhisper

NAMES_SHOWN = 2  # files in progress that the bar names
KINDS_SHOWN = 8  # suffixes of files that were left out


@dataclass(slots=True)
class FileProgress:
    """A file in progress."""

    recording: InputFile
    began: float = field(default_factory=time.perf_counter)
    seconds: float | None = None  # length, once it is loaded
    done: float = 0.0  # seconds transcribed


@dataclass(slots=True)
class JobTotals:
    """A job's counts, and the audio of this run."""

    done: int = 0
    failed: int = 0  # in this run
    skipped: int = 0  # done in an earlier run, or the outputs exist
    failed_earlier: int = 0  # in an earlier run, and not tried again
    segments: int = 0  # with text, in files done
    flagged: int = 0  # of these
    dropped: int = 0  # left out by --drop
    audio: float = 0.0  # seconds of audio in files done or failed
    loaded: float = 0.0  # seconds of audio in files loaded so far
    surveyed: float = 0.0  # seconds of audio in files surveyed so far
    complete: bool = False  # the survey is complete
    began: float | None = None  # when transcription started, after loading the model
    current: dict[Path | RemoteFile, FileProgress] = field(default_factory=dict)
    fill: dict[int, float] = field(default_factory=dict)  # worker of Ray -> share of slots in use

    @property
    def elapsed(self) -> float:
        """Seconds since transcription started."""
        return 0.0 if self.began is None else time.perf_counter() - self.began

    @property
    def audio_so_far(self) -> float:
        """Seconds of audio transcribed or failed, including files in progress."""
        return self.audio + sum(c.done for c in list(self.current.values()))

    @property
    def speed(self) -> float:
        """Seconds of audio per second."""
        elapsed = self.elapsed
        return self.audio_so_far / elapsed if elapsed > 0 else 0.0

    @property
    def total(self) -> float:
        """Seconds of audio in the whole job, as far as known."""
        return max(self.surveyed, self.loaded, self.audio_so_far)

    @property
    def remaining(self) -> float | None:
        """Estimated seconds until the audio known so far is done; None: not known."""
        known = self.total - self.audio_so_far
        if self.speed > 0 and (known > 0 or self.complete):
            return known / self.speed
        return None

    def line(self) -> str:
        """`12:30 of 1:02:00+ | 24.1 x real time, 2:05+ left | 3 done, 1 failed | a.mp3, +7`."""
        more = "" if self.complete else "+"
        remaining = "?" if self.remaining is None else clock(self.remaining) + more
        line = (
            f"{clock(self.audio_so_far)} of {clock(self.total)}{more} | "
            f"{self.speed:.1f} x real time, {remaining} left | {self.done} done"
        )
        if self.failed:
            line += f", {self.failed} failed"
        if self.fill:
            share = sum(self.fill.values()) / len(self.fill)
            line += f" | {len(self.fill)} workers, {share:.0%} of slots filled"
        names = [shorten(escape_line(Path(str(path)).name)) for path in list(self.current)]
        names[NAMES_SHOWN:] = [f"+{len(names) - NAMES_SHOWN}"] if names[NAMES_SHOWN:] else []
        return f"{line} | {', '.join(names)}" if names else line


def model_facts(model: "SlimWhisper", batch_size: int) -> dict[str, Any]:
    """The model, where it runs, how many windows it decodes together, and its caches."""
    return {
        "model": model.name,
        "device": str(model.device),
        "dtype": model.compute_type,
        "fastest_dtype": model.fastest_dtype,
        "batch_size": batch_size,
        "cache": "+".join(map(brief, model.forms)),
        "bytes_per_window": model.bytes_per_window(),
        "baseline_bytes_per_window": model.baseline_bytes_per_window(),
        "fallbacks": list(model.fallbacks),
        "settings": list(model.settings),
    }


def model_terms(facts: dict[str, Any] | None, requested_model: str) -> dict[str, str]:
    """The report's lines about the model, from `model_facts`; None: no model was loaded."""
    if facts is None:
        return {"model": f"{requested_model}, not loaded, as this run had nothing to transcribe"}
    keys = ("model", "device", "dtype", "batch_size", "cache")
    terms = {key.replace("_", " "): str(facts[key]) for key in keys}
    notes = [*facts["fallbacks"], *facts["settings"], *_text_memory(facts)]
    return terms | {"notes": "; ".join(notes) or "none"}


def summary_facts(
    totals: JobTotals, status: int, journal: Path | str | None, left_out: Mapping[str, int]
) -> dict[str, Any]:
    """The numbers of a finished job. left_out: suffix -> files that were no recordings; those that
    jobs write do not count.
    """
    ours = {*FORMATS, "jsonl"}
    others = {kind: n for kind, n in left_out.items() if kind.removeprefix(".") not in ours}
    counts = ("done", "failed", "skipped", "failed_earlier", "segments")
    seconds = {"audio_seconds": totals.audio, "elapsed": totals.elapsed, "speed": totals.speed}
    return {
        "status": status,
        **{name: getattr(totals, name) for name in counts},
        "to_check": totals.flagged,
        **({"dropped": totals.dropped} if totals.dropped else {}),
        **{name: round(value, 3) for name, value in seconds.items()},
        "journal": None if journal is None else str(journal),
        **({"left_out": others} if others else {}),
    }


def summary_lines(facts: dict[str, Any], model: dict[str, Any] | None) -> list[str]:
    """The summary as text, from `summary_facts` and, if a model was loaded, `model_facts`."""
    lines = [_counts_line(facts)]
    if flagged := facts["to_check"]:
        of = "1 segment" if facts["segments"] == 1 else f"{facts['segments']} segments"
        lines.append(f"{flagged} of {of} to check")
    if dropped := facts.get("dropped"):
        lines.append(f"{dropped} segment{'s' * (dropped > 1)} dropped")
    if left_out := facts.get("left_out"):
        kinds = sorted(left_out.items(), key=lambda kind: -kind[1])
        kinds[KINDS_SHOWN:] = [("others", sum(n for _, n in kinds[KINDS_SHOWN:]))]
        shown = ", ".join(f"{n} {escape_line(kind)}" for kind, n in kinds if n)
        lines.append(f"left out: {shown}")
    if facts["status"] > 1:
        resume = "; run the same command again to resume" if facts["journal"] else ""
        lines.append(f"stopped early; finished files are saved{resume}")
    if facts["failed_earlier"]:
        lines.append("add --retry_failed True to retry files that failed in an earlier run")
    if facts["journal"]:
        lines.append(f"journal: {facts['journal']}")
    if "report" in facts:
        lines.append(f"report: {facts['report']}")
    if model is not None:
        lines += [_model_line(model), *model["fallbacks"], *model["settings"]]
    if faster := facts.get("faster"):
        lines.append(f"1.5 times as fast here: --compute_type auto ({faster}; docs/numerics.md)")
    return lines


def _model_line(model: dict[str, Any]) -> str:
    """The model, its device, and how much smaller its cache is."""
    size, baseline = model["bytes_per_window"], model["baseline_bytes_per_window"]
    line = (
        f"{model['model']} on {model['device']}, {model['dtype']}, batch {model['batch_size']}; "
        f"cache {model['cache']}: {human_size(size)} per window"
    )
    if size != baseline:
        times = f"{baseline / size:.1f} times smaller"
        line += f", {times} than the baseline's {human_size(baseline)}"
    return line + "".join(f"; {note}" for note in _text_memory(model))


def _text_memory(model: dict[str, Any]) -> list[str]:
    """The memory that texts took; empty if no text was decoded in this process."""
    notes = []
    if texts := model.get("peak_bytes"):
        notes.append(f"the cache of texts took up to {human_size(texts)}")
    if times := model.get("preemptions"):
        notes.append(f"texts waited for memory {times} times (see --cache_memory)")
    return notes


def _counts_line(facts: dict[str, Any]) -> str:
    """The numbers of files transcribed, failed and skipped, and the speed."""
    done, failed = facts["done"], facts["failed"]
    outcomes = {"skipped": "already done", "failed_earlier": "failed in an earlier run"}
    earlier = [f"{facts[key]} {outcome}" for key, outcome in outcomes.items() if facts[key]]
    if not done + failed:
        verdict = "No files transcribed" if facts["status"] > 1 else "Nothing to do"
        return f"{verdict}: {', '.join(earlier)}." if earlier else f"{verdict}."
    files = f"{done + failed} file{'s' * (done + failed > 1)}"
    line = ", ".join([f"{done} of {files} transcribed", f"{failed} failed", *earlier])
    if not done:
        return line
    audio, elapsed, speed = facts["audio_seconds"], facts["elapsed"], facts["speed"]
    return f"{line}; {audio:.1f} s of audio in {elapsed:.1f} s ({speed:.1f} x real time)"
