"""Sentences and sounds for `trust.py`; sounds are float32 [n] at 16 kHz."""

from functools import cache
from pathlib import Path

import numpy as np

import slimwhisper
from recipes.digits.catalogue import WORDS

RATE = 16_000
SPEAKERS = ("george", "jackson", "lucas", "nicolas", "yweweler")
SENTENCES = {
    "en": [
        "We took the early train because the road over the pass was closed.",
        "No, no, no, that is not what she told me on Tuesday.",
        "The second figure is higher, and the third is higher still.",
        "Thank you for the invitation, I am happy to be here tonight.",
        "He said that he said nothing, and that nothing was said.",
    ],
    "de": [
        "Der Bus fährt heute nur bis zum Bahnhof, danach gehen wir zu Fuß.",
        "Das Wetter war gut, die Stimmung war gut, nur das Essen war kalt.",
        "Vielen Dank für die Frage, ich fange am besten von vorne an.",
    ],
    "fr": [
        "Nous avons attendu une heure devant la porte avant d'entrer.",
        "Merci à tous ceux qui ont préparé cette réunion.",
    ],
    "es": ["El mercado abre a las ocho, pero hoy llegamos un poco tarde."],
    "it": ["La finestra era aperta e faceva molto freddo nella stanza."],
    "ru": [
        "Мы долго шли по берегу реки и почти не разговаривали.",
        "Спасибо за вопрос, сейчас я попробую объяснить подробнее.",
    ],
    "ar": ["ذهبنا إلى السوق في الصباح واشترينا الخبز والفاكهة."],
    "zh": [
        "我们昨天晚上坐火车去了北京，路上下了很大的雨。",
        "他说他明天不来，因为他要去医院看朋友。",
    ],
    "ja": ["昨日は友達と一緒に海へ行って、夕方まで写真を撮りました。"],
    "ko": ["어제는 비가 많이 와서 우리는 집에서 책을 읽었습니다."],
}
REPEATED = {  # as people do repeat themselves
    "en": [
        "Yes we can. Yes we can. Yes we can.",
        "Row, row, row your boat, gently down the stream.",
        "Five five five, zero one four, two two two.",
        "Merrily, merrily, merrily, merrily, life is but a dream.",
        "La la la la la la la la la.",
        "Testing, one, two, one, two, one, two, one, two.",
    ],
    "es": ["Olé, olé, olé, olé, olé."],
    "ja": ["はいはいはい、わかりました。"],
    "zh": ["哈哈哈哈哈哈，太好笑了。"],
}
SYLLABIC = ("zh", "ja", "ko")


def natural_seconds(text: str, language: str) -> float:
    """The time that speaking takes at 14 characters a second, or 5 syllables."""
    return len(text) / (5 if language in SYLLABIC else 14)


def noise(seconds: float, rng: np.random.Generator) -> np.ndarray:
    return (0.05 * rng.standard_normal(int(seconds * RATE))).astype(np.float32)


def music(seconds: float, rng: np.random.Generator) -> np.ndarray:
    """A melody over chords, with a beat: tones with overtones that fade, twice a second."""
    samples = np.zeros(int(seconds * RATE) + RATE, np.float32)
    scale = 220 * 2 ** (np.array([0, 2, 4, 5, 7, 9, 11, 12]) / 12)
    time = np.arange(RATE) / RATE
    for beat in range(int(seconds * 2)):
        notes = [rng.choice(scale) * 2, *(rng.choice(scale[:5], 2) if beat % 2 == 0 else ())]
        tone = sum(np.sin(2 * np.pi * f * k * time) / k for f in notes for k in (1, 2, 3))
        click = rng.standard_normal(RATE) * np.exp(-60 * time)
        start = beat * RATE // 2
        beat_sound = 0.06 * tone * np.exp(-3 * time) + 0.05 * click
        samples[start : start + RATE] += beat_sound.astype("f4")
    return samples[: int(seconds * RATE)]


class Digits:
    """Recordings of digits that the model was not trained on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cache  # noqa: B019
    def word(self, digit: int, speaker: str, index: int) -> np.ndarray:
        return slimwhisper.load_audio(self.folder / f"{digit}_{speaker}_{index}.wav")

    def spoken(
        self, seconds: float, rng: np.random.Generator
    ) -> tuple[list[tuple[str, float, float]], np.ndarray]:
        """One speaker's digits with pauses: (word, start, end) of each, and the samples."""
        speaker, words = rng.choice(SPEAKERS), []
        position = RATE // 2
        parts: list[np.ndarray] = [np.zeros(position, np.float32)]
        while position < (seconds - 1.5) * RATE:
            digit = int(rng.integers(10))
            sound = self.word(digit, str(speaker), int(rng.integers(5)))
            sound = sound * (0.1 / max(float(np.sqrt((sound**2).mean())), 1e-6))
            words.append((WORDS[digit], position / RATE, (position + len(sound)) / RATE))
            pause = np.zeros(int(rng.choice([0.1, 0.2, 0.3, 1.0]) * RATE), np.float32)
            parts += [sound, pause]
            position += len(sound) + len(pause)
        samples = np.concatenate(parts)[: int(seconds * RATE)]
        return words, np.pad(samples, (0, max(0, int(seconds * RATE) - len(samples))))


def mixed(speech: np.ndarray, other: np.ndarray, snr: float) -> np.ndarray:
    """Their sum; snr: in dB, of the whole recordings."""
    gain = np.sqrt((speech**2).mean() / (other**2).mean()) * 10 ** (-snr / 20)
    total = speech + gain * other
    return (total / max(1.0, float(np.abs(total).max()))).astype(np.float32)
