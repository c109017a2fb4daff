"""The supported recordings: suffixes, and the demuxers and decoders that FFmpeg may use.

FFmpeg has about 900 demuxers and decoders, most of them for old games and cameras, and most of its
vulnerabilities are in those (CVE-2026-8461, CVE-2026-125267). Recordings of speech need only the
few below. All others are disabled, including those for pictures.
"""

import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from slimwhisper.text import text_encoding

# of dff, ds2, dsf, dv, mxf, shn, sph, tak and wtv no demuxer is allowed: they have to be converted,
# which a folder's job says of each
AUDIO_SUFFIXES = frozenset(
    ".3g2 .3ga .3gp .3gp2 .3gpp .3gpp2 .aac .ac3 .adts .aif .aifc .aiff .amr .ape .asf .au .avi"
    " .awb .bwf .caf .dff .divx .ds2 .dsf .dss .dts .dtshd .dv .eac3 .ec3 .f4a .f4b .f4v .flac"
    " .flv .gsm .isma .ismv .latm .loas .m1a .m2a .m2t .m2ts .m4a .m4b .m4p .m4r .m4v .mk3d .mka"
    " .mkv .mov .mp+ .mp1 .mp2 .mp3 .mp4 .mpa .mpc .mpe .mpeg .mpg .mpga .mts .mxf .oga .ogg .ogm"
    " .ogv .ogx .opus .qt .ra .rf64 .rm .rmvb .shn .snd .sph .spx .tak .thd .tod .tp .trp .ts .tta"
    " .vob .voc .vro .w64 .wav .wave .weba .webm .wm .wma .wmv .wtv .wv .xvid .xwma".split()
)
MAYBE_TEXT = frozenset((".mts", ".ts"))  # TypeScript's suffixes, too
HEAD = 512  # bytes that show whether a file is text
# folders of deleted files, thumbnails and the like, in small letters; others begin with a dot
TRASH = frozenset(
    "#recycle|#snapshot|$recycle.bin|@eadir|@recycle|__macosx|lost+found|recycler|"
    "system volume information".split("|")
)

# FFmpeg's names: `ffmpeg -demuxers`; some demuxers have several.
CONTAINERS = frozenset(
    "3gp aac ac3 aiff amr amrnb amrwb ape asf au avi caf dss dts dtshd eac3 flac flv gsm loas"
    " matroska mov mp3 mp4 mpc mpc8 mpeg mpegts ogg rm truehd tta voc w64 wav webm wv xwma".split()
)

# `ffmpeg -decoders`; some codecs have several.
DECODERS = frozenset(
    "aac aac_fixed aac_latm ac3 ac3_fixed adpcm_ima_qt adpcm_ima_wav"
    " adpcm_ms adpcm_swf adpcm_yamaha alac amrnb amrwb ape atrac3 atrac3plus cook dca dss_sp"
    " eac3 evrc flac g722 g723_1 g726 g726le g729 gsm gsm_ms ilbc libgsm libopencore_amrnb"
    " libopencore_amrwb libopus libspeex libvorbis mlp mp1 mp1float mp2 mp2float mp3 mp3adu"
    " mp3adufloat mp3float mp3on4 mp3on4float mpc7 mpc8 nellymoser opus pcm_alaw pcm_bluray"
    " pcm_dvd pcm_f32be pcm_f32le pcm_f64be pcm_f64le pcm_mulaw pcm_s16be pcm_s16le"
    " pcm_s16be_planar pcm_s16le_planar pcm_s24be pcm_s24le pcm_s32be pcm_s32le pcm_s8 pcm_u16be"
    " pcm_u16le pcm_u24be pcm_u24le pcm_u32be pcm_u32le pcm_u8 qcelp real_144 real_288 sipr"
    " speex truehd truespeech tta vorbis wavpack wmalossless wmapro wmav1 wmav2 wmavoice".split()
)

# What `slimwhisper live --allow_url` may also open: live streams, with their protocols. No "file":
# a playlist must not open files of this machine.
LIVE_CONTAINERS = frozenset("hls mpegts rtp rtsp sdp".split())
PROTOCOLS = frozenset("crypto http httpproxy https rtp tcp tls udp".split())
ADDRESSES = ("http", "https", "rtsp", "udp", "rtp")  # schemes


class Selection:
    """Chooses the recordings among the files of folders, stores and archives, which nobody named,
    and counts the other files.
    """

    def __init__(self) -> None:
        self.left_out: Counter[str] = Counter()  # suffix in small letters, or "hidden" -> files

    def takes(
        self, path: str, read_head: Callable[[], bytes] | None = None, hidden: bool = False
    ) -> bool:
        """Whether a file is a recording: not hidden, and with the suffix of one. If the suffix is
        TypeScript's, too, its first `HEAD` bytes decide; None: it is a local file. hidden: hidden
        files were asked for.
        """
        suffix = os.path.splitext(path)[1].lower()  # noqa: PTH122  (faster than Path, for millions of files)
        kind = suffix or "without a suffix"
        if not hidden and is_hidden(os.path.basename(path)):  # noqa: PTH119
            kind = "hidden"
        elif suffix in AUDIO_SUFFIXES:
            head = None if suffix not in MAYBE_TEXT else read_head() if read_head else _head(path)
            if not head or text_encoding(head) is None:
                return True
        self.left_out[kind] += 1
        return False


def is_hidden(name: str) -> bool:
    """Whether a file or folder of this name, which nobody named, is hidden or trash. (macOS writes
    `._talk.wav` beside `talk.wav`, which has no sound.)
    """
    return name.startswith(".") or name.lower() in TRASH


def _head(path: str) -> bytes:
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # it may be a pipe
        with os.fdopen(descriptor, "rb") as file:
            return file.read(HEAD) or b""
    return b""
