"""Phrases that Whisper invents over silence, noise and music, by language.

They come from subtitles that it learned from: credits of those who wrote them, and what videos end
with. Whisper detects a language in silence too, so all lists are compared with every text.

Sources, read in 2026:
- Barański et al., "Investigation of Whisper ASR Hallucinations Induced by Non-Speech Audio",
  ICASSP 2025, arXiv 2501.11378: what is invented most, in English;
- openai/whisper, discussions 679, 928 and 2608: reports and lists by language;
- SYSTRAN/faster-whisper issue 850, Purfview/whisper-standalone-win issue 321,
  amicalhq/amical issue 71, PocketShell-io/pocketshell issue 452, Vexa-ai/vexa issues 155 and 617:
  Japanese, Greek, Korean, Turkish, Russian, Spanish, Portuguese.
"""

from functools import cache

from slimwhisper.trust.tokens import tokens_of

MORE = 8  # tokens of a credit after or before its phrase: names, a year

# Who wrote the subtitles. Nobody says this in a recording, so the words are enough.
CREDITS: dict[str, tuple[str, ...]] = {
    "ar": ("ترجمة نانسي قنقر",),
    "cs": ("Titulky vytvořil JohnyX",),
    "da": ("Danske tekster af", "Undertekster af Amara.org"),
    "de": (
        "Untertitel im Auftrag des ZDF",
        "Untertitelung im Auftrag des ZDF",
        "Untertitelung des ZDF",
        "Untertitel der Amara.org-Community",
        "Untertitelung aufgrund der Amara.org-Community",
        "Untertitel von Stephanie Geiges",
        "Copyright WDR",
    ),
    "el": ("Υπότιτλοι AUTHORWAVE",),
    "en": (
        "Subtitles by the Amara.org community",
        "Transcription by CastingWords",
        "Transcribed by otter.ai",
        "Subs by www.zeoranger.co.uk",
        "www.mooji.org",
    ),
    "es": (
        "Subtítulos realizados por la comunidad de Amara.org",
        "Subtítulos por la comunidad de Amara.org",
        "Subtítulos creados por la comunidad de Amara.org",
        "Subtitulado por la comunidad de Amara.org",
        "Subtítulos en español de Amara.org",
    ),
    "fr": (
        "Sous-titres réalisés par la communauté d'Amara.org",
        "Sous-titres réalisés para la communauté d'Amara.org",
        "Sous-titrage Société Radio-Canada",
        "Sous-titrage ST' 501",
        "par SousTitreur.com",
    ),
    "it": (
        "Sottotitoli creati dalla comunità Amara.org",
        "Sottotitoli e revisione a cura di",
        "Sottotitoli a cura di QTSS",
    ),
    "ko": ("MBC 뉴스", "자막 제공"),
    "nl": (
        "Ondertitels ingediend door de Amara.org gemeenschap",
        "Ondertiteld door de Amara.org gemeenschap",
        "TV Gelderland",
    ),
    "no": ("Undertekster av Ai-Media", "Teksting av Nicolai Winther"),
    "pl": (
        "Napisy stworzone przez społeczność Amara.org",
        "Napisy wykonane przez społeczność Amara.org",
        "Tłumaczenie stworzone przez społeczność Amara.org",
    ),
    "pt": (
        "Legendas pela comunidade Amara.org",
        "Legendas pela comunidade de Amara.org",
        "Legendas pela comunidade das Amara.org",
    ),
    "ru": (
        "Субтитры сделал DimaTorzok",
        "Субтитры добавил DimaTorzok",
        "Субтитры создавал DimaTorzok",
        "Редактор субтитров",
    ),
    "sv": ("Undertexter från Amara.org-gemenskapen", "Svensktextning.nu"),
    "th": ("คำบรรยายโดยชุมชน Amara.org",),
    "tr": ("Altyazı M.K.",),
    "vi": (
        "Phụ đề được thực hiện bởi cộng đồng Amara.org",
        "Hãy subscribe cho kênh Ghiền Mì Gõ",
    ),
    "zh": (
        "字幕由Amara.org社区提供",
        "字幕由Amara.org社區提供",
        "由 Amara.org 社群提供的字幕",
        "中文字幕由Amara.org社区提供",
        "请不吝点赞 订阅 转发 打赏支持明镜与点点栏目",
        "請不吝點贊訂閱轉發打賞支持明鏡與點點欄目",
        "明镜需要您的支持 欢迎订阅明镜",
        "字幕志愿者",
        "优优独播剧场",
    ),
}

# What people also say: a segment of nothing else is suspect only with evidence from the sound.
COMMON: dict[str, tuple[str, ...]] = {
    "ar": (
        *("شكرا للمشاهدة", "شكرا على المشاهدة", "شكرا لكم على المشاهدة", "اشتركوا في القناة"),
        *("شكرا", "موسيقى"),
    ),
    "cs": ("Děkuji za pozornost", "Děkuji za sledování", "Konec"),
    "da": ("Tak fordi du så med", "Tak for at du så med"),
    "de": (
        *("Vielen Dank", "Vielen Dank fürs Zuschauen", "Danke fürs Zuschauen", "Danke", "Tschüss"),
        *("Vielen Dank für das Zuschauen", "Vielen Dank fürs Ansehen", "Bis zum nächsten Mal"),
        "Das war's für heute",
    ),
    "en": (
        *("Thank you", "Thank you very much", "Thank you so much", "Thanks", "you", "so", "Bye"),
        *("Thanks for watching", "Thank you for watching", "Thank you so much for watching"),
        *("Please subscribe", "Subscribe", "Please subscribe to my channel", "Bye bye", "okay"),
        *("Like and subscribe", "Don't forget to like and subscribe", "I'm sorry", "The end"),
        *("See you next time", "See you in the next video", "I'll see you next time", "oh", "I"),
        *("Thank you for your attention", "We'll be right back", "Music", "Applause", "hmm"),
    ),
    "es": (
        *("Gracias", "Gracias por ver el video", "Gracias por ver", "¡Suscríbete al canal!"),
        *("Suscríbete", "Hasta la próxima", "Muchas gracias"),
    ),
    "fi": ("Kiitos kun katsoit", "Kiitos"),
    "fr": (
        *("Merci", "Merci d'avoir regardé cette vidéo", "Merci d'avoir regardé la vidéo"),
        *("Merci d'avoir regardé", "Abonnez-vous", "Abonnez-vous à la chaîne", "Au revoir"),
    ),
    "hu": ("Köszönöm, hogy megnézted", "Köszönöm a figyelmet"),
    "it": (
        *("Grazie", "Grazie per la visione", "Grazie per aver guardato il video"),
        *("Grazie per aver guardato", "Iscriviti al canale", "Grazie a tutti"),
    ),
    "ja": (
        *("ご視聴ありがとうございました", "ご視聴ありがとうございます", "ありがとうございました"),
        *("最後までご視聴いただきありがとうございました", "おやすみなさい", "ありがとうございます"),
        *("次の動画でお会いしましょう", "チャンネル登録をよろしくお願いします", "字幕", "はい"),
        *("チャンネル登録お願いします", "お疲れ様でした", "見てくれてありがとう"),
    ),
    "ko": (
        *("시청해주셔서 감사합니다", "시청해 주셔서 감사합니다", "구독과 좋아요 부탁드립니다"),
        *("감사합니다", "다음 영상에서 만나요", "네"),
    ),
    "nl": ("Bedankt voor het kijken", "Dank u wel", "Tot de volgende keer"),
    "no": ("Takk for at du så på", "Takk for at du så med"),
    "pl": ("Dziękuję za oglądanie", "Dzięki za oglądanie", "Dziękuję za uwagę", "Dziękuję"),
    "pt": ("Obrigado por assistir", "Obrigada por assistir", "Obrigado", "E aí", "Tchau"),
    "ro": ("Nu uitați să dați like și subscribe", "Vă mulțumesc pentru vizionare"),
    "ru": (
        *("Продолжение следует", "Спасибо за просмотр", "Подписывайтесь на наш канал"),
        *("Подписывайтесь на канал", "Спасибо", "Спасибо за внимание", "До свидания"),
    ),
    "sv": ("Tack för att du tittade", "Tack för att ni tittade"),
    "tr": ("İzlediğiniz için teşekkür ederim", "Abone olmayı unutmayın", "Teşekkür ederim"),
    "uk": ("Дякую за перегляд", "Дякую за увагу"),
    "vi": ("Cảm ơn các bạn đã theo dõi", "Hẹn gặp lại các bạn trong những video tiếp theo"),
    "zh": (
        *("谢谢观看", "感谢观看", "謝謝觀看", "谢谢大家", "感谢收听", "谢谢", "謝謝"),
        *("请订阅我的频道", "下期再见", "下次再见"),
    ),
}


def is_credit(text: str) -> bool:
    """Whether a text is one of `CREDITS`, with at most a few words around it."""
    tokens = tokens_of(text)
    return any(
        tokens[i : i + len(phrase)] == phrase and len(tokens) <= len(phrase) + MORE
        for i, token in enumerate(tokens)
        for phrase in _credits().get(token, ())
    )


def is_common(text: str) -> bool:
    """Whether a text is one of `COMMON`, once or several times, and nothing else."""
    tokens = tokens_of(text)
    return any(
        tokens == phrase * (len(tokens) // len(phrase))
        for phrase in (_common().get(tokens[0], ()) if tokens else ())
    )


@cache
def _credits() -> dict[str, list[tuple[str, ...]]]:
    return _by_first_token(CREDITS)


@cache
def _common() -> dict[str, list[tuple[str, ...]]]:
    return _by_first_token(COMMON)


def _by_first_token(table: dict[str, tuple[str, ...]]) -> dict[str, list[tuple[str, ...]]]:
    found: dict[str, list[tuple[str, ...]]] = {}
    for phrases in table.values():
        for tokens in map(tokens_of, phrases):
            found.setdefault(tokens[0], []).append(tokens)
    return found
