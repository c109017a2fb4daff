"""Imports names of a package on first use (PEP 562).

So `import slimwhisper` and `slimwhisper --help` are fast, `slimwhisper doctor` works even where
torch does not, and listing a folder imports no model.
"""

import gc
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from types import MappingProxyType, ModuleType
from typing import Any

STAND_IN = "slimwhisper_openai_whisper"  # its name where "whisper" is taken


def lazy_names(
    package: str,
    homes: Mapping[str, str],
    fallback: str | None = None,
    missing: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package.

    Arguments:
        package: its `__name__`.
        homes: public name -> the module that defines it, with ":name" if it has another name
            there; a module of the package itself -> its own name.
        fallback: a module of openai-whisper whose other names are available here too, for scripts
            written for it.
        missing: those of `fallback` that do not work with our models -> what to use instead.
    """

    def get(name: str) -> Any:
        if name in homes:
            module, _, attribute = homes[name].partition(":")
            home = openai_whisper() if module == "whisper" else import_module(module)
            return home if module == f"{package}.{name}" else getattr(home, attribute or name)
        if name in missing:
            raise AttributeError(f"{package}.{name} is not here: use {missing[name]}")
        if fallback is not None and not name.startswith("__"):
            other = openai_whisper(fallback)
            if hasattr(other, name):
                return getattr(other, name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return get, names


def find_openai_whisper() -> ModuleSpec:
    """The installed package. `sys.modules` is not read: scripts may have put slimwhisper there.

    Raises ModuleNotFoundError.
    """
    spec = PathFinder.find_spec("whisper")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'whisper'", name="whisper")
    return spec


def openai_whisper(module: str = "whisper") -> ModuleType:
    """A module of openai-whisper, by its own name; by another where "whisper" is slimwhisper."""
    present = sys.modules.get("whisper")
    if present is None or present.__name__ == "whisper":
        return import_module(module)
    if STAND_IN not in sys.modules:
        origin = str(find_openai_whisper().origin)
        spec = spec_from_file_location(STAND_IN, origin)
        assert spec is not None and spec.loader is not None
        sys.modules[STAND_IN] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[STAND_IN])
    return import_module(STAND_IN + module.removeprefix("whisper"))


@contextmanager
def lasting_imports(module: str) -> Iterator[None]:
    """For a command's first import of a large module, whose objects live until the process ends:
    the garbage collector is off during the import, and ignores these objects afterwards.
    """
    if module in sys.modules:
        yield
        return
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collects:
            gc.enable()
