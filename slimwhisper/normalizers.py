"""`whisper.normalizers`: texts as error rates compare them. For scripts written for it."""

from slimwhisper._lazy import find_openai_whisper, lazy_names

# so that its modules `basic` and `english` are found, too
__path__ = [f"{f}/normalizers" for f in find_openai_whisper().submodule_search_locations or ()]
__getattr__, __dir__ = lazy_names(__name__, {}, fallback="whisper.normalizers")
