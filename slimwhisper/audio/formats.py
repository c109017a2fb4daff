"""The supported recordings: suffixes, and the demuxers and decoders that FFmpeg may use.

FFmpeg has about 900 demuxers and decoders, most of them for old games and cameras, and most of its
vulnerabilities are in those (CVE-2026-8461, CVE-2026-125267). Recordings of speech need only the
few below. All others are disabled, including those for pictures.
"""

AUDIO_SUFFIXES = frozenset(
    ".3g2 .3gp .aac .ac3 .aif .aifc .aiff .amr .ape .asf .au .avi .caf .dts .eac3 .flac .flv .m2ts"
    " .m4a .m4b .m4v .mka .mkv .mov .mp2 .mp3 .mp4 .mpeg .mpg .mpga .mts .oga .ogg .ogv .opus .spx"
    " .tta .w64 .wav .webm .wma .wmv .wv".split()
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
