"""No message, journal or name of an output holds a credential."""

import pytest

from slimwhisper.errors import DependencyError, OptionError
from slimwhisper.storage.files import StoredFile
from slimwhisper.storage.stamps import Stamp
from slimwhisper.storage.uris import hide, hide_in, is_uri, open_filesystem, reason


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("s3://bucket/a b/c.wav", "s3://bucket/a b/c.wav"),
        ("sftp://me:pa:ss@host/x.wav", "sftp://host/x.wav"),
        ("https://me@host/x@y.wav", "https://host/x@y.wav"),
        (
            "https://b.s3.amazonaws.com/a.wav?X-Amz-Credential=AKIA%2F1&X-Amz-Signature=c0ffee",
            "https://b.s3.amazonaws.com/a.wav",
        ),
        ("https://x.blob.core.windows.net/c/a.wav?sv=2024&se=2027&sig=abc", "https://x.blob.core.windows.net/c/a.wav"),
        ("https://h/get?id=5&token=t0p&lang=en", "https://h/get?id=5&lang=en"),
        ("https://h/get?api_key=k#t=1,2", "https://h/get#t=1,2"),
        ("s3://bucket/what?.wav", "s3://bucket/what?.wav"),
        ("abfs://box@account.dfs.core.windows.net/a.wav", "abfs://account.dfs.core.windows.net/a.wav"),
    ],
)  # fmt: skip
def test_what_is_shown(uri: str, shown: str) -> None:
    assert hide(uri) == shown
    assert hide_in(f"GET {uri.replace(' ', '+')} failed") == (
        f"GET {shown.replace(' ', '+')} failed"
    )


def test_errors_of_libraries() -> None:
    error = OSError("403 for\n'https://u:p@h/a?Signature=s3cret&x=1' (denied)")
    assert reason(error) == "403 for 'https://h/a?x=1' (denied)"
    assert reason(ValueError()) == "ValueError"


def test_a_recording_does_not_show_its_uri() -> None:
    file = StoredFile("sftp://me:secret@h/a.wav", "/a.wav", Stamp("sftp://h/a.wav", 1, 2))
    assert "secret" not in f"{file} {file!r}"


def test_which_kinds_there_are() -> None:
    assert is_uri("s3://b") and is_uri("hf://datasets/x") and is_uri("memory://x")
    assert not any(map(is_uri, ("talks/a.wav", "/a//b", "C:/x", "a:b", "-", "://x")))
    for uri in ("gopher://x:y@host/a", "tar://a.wav::s3://b/c.tar"):
        with pytest.raises(OptionError, match="unknown kind of address") as caught:
            open_filesystem(uri)
        assert "y@" not in str(caught.value)


def test_a_package_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    def missing(*_: object, **__: object) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(DependencyError) as caught:
        open_filesystem("s3://bucket")
    assert str(caught.value) == "s3:// needs another package: pip install 'fsspec[s3]'"
