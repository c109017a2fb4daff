"""Imports names of a package on first use (PEP 562).

So `import slimwhisper` and `slimwhisper --help` are fast, `slimwhisper doctor` works even where
torch does not, and listing a folder imports no model.
"""

import gc
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package.

    Arguments:
        package: its `__name__`.
        homes: public name -> the module that defines it, with ":name" if it has another name
            there; a module of the package itself -> its own name.
    """

    def get(name: str) -> Any:
        if name in homes:
            module, _, attribute = homes[name].partition(":")
            try:
                home = import_module(module)
            except ModuleNotFoundError as error:
                if error.name != module:
                    raise
                reason = f"{module} is openai-whisper's: pip install openai-whisper"
                raise ModuleNotFoundError(reason, name=module) from None
            return home if module == f"{package}.{name}" else getattr(home, attribute or name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return get, names


def is_installed(module: str) -> bool:
    """Whether a module can be imported; imports only its parents."""
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # a parent is missing, or it is no module's name
        return False


def openai_whisper_path() -> list[str]:
    """The folder of openai-whisper's modules; empty if it is not installed. `sys.modules` is not
    read: scripts may have put slimwhisper there.
    """
    spec = PathFinder.find_spec("whisper")
    return list((spec and spec.submodule_search_locations) or ())


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
