"""A job's last words, for people and for machines."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimwhisper.progress import Tally

if TYPE_CHECKING:  # a job with nothing left to do ends without torch
    from slimwhisper.transcribe import SlimWhisper


def model_facts(model: "SlimWhisper") -> dict[str, Any]:
    """Which model runs where, on which caches."""
    return {
        "model": model.name,
        "device": str(model.device),
        "dtype": model.compute_type,
        "cache": "+".join(model.forms),
        "bytes_per_window": model.bytes_per_window(),
        "baseline_bytes_per_window": model.baseline_bytes_per_window(),
        "fallbacks": list(model.fallbacks),
    }


def summary_facts(tally: Tally, status: int, journal: Path | None) -> dict[str, Any]:
    """The numbers of a job that is over."""
    return {
        "status": status,
        "done": tally.done,
        "failed": tally.failed,
        "skipped": tally.skipped,
        "failed_earlier": tally.failed_earlier,
        "audio_seconds": round(tally.audio, 3),
        "elapsed": round(tally.elapsed, 3),
        "speed": round(tally.speed, 3),
        "journal": None if journal is None else str(journal),
    }


def summary_lines(facts: dict[str, Any], model: dict[str, Any] | None) -> list[str]:
    """The same in words; `facts` and `model` are those of the functions above."""
    done, failed = facts["done"], facts["failed"]
    counts = f"{done} of {done + failed} files transcribed, {failed} failed"
    if facts["skipped"]:
        counts += f", {facts['skipped']} already done"
    if facts["failed_earlier"]:
        counts += f", {facts['failed_earlier']} failed in an earlier run"
    audio, elapsed, speed = facts["audio_seconds"], facts["elapsed"], facts["speed"]
    lines = [f"{counts}; {audio:.1f} s of audio in {elapsed:.1f} s ({speed:.1f} x real time)"]
    if facts["status"] > 1:
        resume = "; the same command resumes" if facts["journal"] else ""
        lines.append(f"stopped; what was done is written{resume}")
    if facts["journal"]:
        again = "; --retry_failed True tries the failed ones again"
        lines.append(f"journal: {facts['journal']}" + (again if facts["failed_earlier"] else ""))
    if model is not None:
        kept, baseline = model["bytes_per_window"], model["baseline_bytes_per_window"]
        lines.append(
            f"{model['model']} on {model['device']}, {model['dtype']}; "
            f"cache {model['cache']}: {kept / 1e6:.1f} MB a window, "
            f"{baseline / kept:.1f} times less than {baseline / 1e6:.1f}"
        )
        lines += model["fallbacks"]
    return lines
