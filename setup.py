"""Builds `kernels/cpu` into a shared library that uses nothing of Python, so that one wheel serves
every Python. Without a compiler that can do it, slimwhisper is installed without the library, and
the compiler's error is kept for `slimwhisper doctor`. CC and CFLAGS are followed;
SLIMWHISPER_NATIVE=0 leaves the library out.
"""

import os
import shlex
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

FOLDER = "kernels/cpu"
SOURCES = (
    *("attention", "attention_wide", "attention_bf16", "attention_half", "attention_half_wide"),
    *("attention_integers", "attention_integers_wide"),
    *("blocks", "blocks_wide", "blocks_bf16", "choose_token", "choose_token_wide"),
    *("encoder_attention", "encoder_attention_wide", "encoder_attention_bf16"),
    "encoder_attention_integers",
    *("encoder_rows", "encoder_rows_wide"),
    *("encoder_rows_integers", "encoder_rows_integers_wide"),
    *("products", "products_wide", "products_bf16", "transposed", "transposed_bf16"),
    "threads",
)
HEADERS = ("bfloat16", "integers", "norm", "threads", "tiles", "vectors")
OPTIONS = ("-O3", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi", "-fPIC")
NATIVE = os.environ.get("SLIMWHISPER_NATIVE") != "0"
LIBRARY = Extension(
    "slimwhisper.kernels.cpu._native",
    [f"{FOLDER}/{name}.c" for name in (*SOURCES, "usable")],
    depends=[f"{FOLDER}/{name}.h" for name in HEADERS],
    optional=True,
)


class BuildLibrary(build_ext):
    """Compiles the library; a failure is no error, but its reason is written beside it."""

    def get_ext_filename(self, fullname: str) -> str:
        """Without the tag of one Python."""
        return f"{fullname.replace('.', os.sep)}.so"

    def build_extension(self, ext: Extension) -> None:
        """Raises nothing for a compiler that is missing or fails."""
        target = Path(self.get_ext_fullpath(ext.name))
        log = target.with_name("native.txt")
        target.parent.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)
        reason = self._compile(ext.sources, target)
        if reason is None:
            return
        log.write_text(f"{reason}\n", encoding="utf-8")
        self.warn(f"built WITHOUT compiled kernels, about half the speed on a CPU: {reason}")

    def _compile(self, sources: Sequence[str], target: Path) -> str | None:
        """Several files at a time; returns why it failed."""
        compiler = shlex.split(os.environ.get("CC", "cc"))
        flags = shlex.split(os.environ.get("CFLAGS", ""))
        folder = Path(self.build_temp)
        folder.mkdir(parents=True, exist_ok=True)
        objects = [str(folder / f"{Path(source).stem}.o") for source in sources]

        def run(*arguments: str) -> str | None:
            try:
                command = [*compiler, *OPTIONS, *flags, *arguments]
                done = subprocess.run(command, capture_output=True, text=True, errors="replace")
            except OSError as error:
                return f"{compiler[0]}: {error.strerror}"
            if done.returncode == 0:
                return None
            lines = done.stderr.splitlines()
            error = next((line for line in lines if "error" in line), "".join(lines[:1]))
            return f"{compiler[0]} failed: {error.strip()}"

        steps = [("-c", source, "-o", made) for source, made in zip(sources, objects, strict=True)]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            failed = next(filter(None, pool.map(lambda step: run(*step), steps)), None)
        return failed or run("-shared", "-s", "-o", str(target), *objects, "-lm", "-pthread")


class TagWheel(bdist_wheel):
    """A wheel for every Python 3 of a system, or, without the library, of all systems."""

    def get_tag(self) -> tuple[str, str, str]:
        """(Python, its ABI, system)."""
        return ("py3", "none", super().get_tag()[2] if NATIVE else "any")


setup(
    ext_modules=[LIBRARY] if NATIVE else [],
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": TagWheel},
)
