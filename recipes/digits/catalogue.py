"""The voices that training uses: recorded people and synthetic voices."""

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SPEAKERS = (
    "george",
    "jackson",
    "lucas",
    "nicolas",
    "yweweler",
)  # the sixth, theo, is kept for tests

# Others, recorded once, by file, in Debian's packages (the last: in PyPI's captcha).
PEOPLE = {
    "allison": "/usr/share/asterisk/sounds/en_US_f_Allison/digits/{digit}.wav",
    "csmash": "/usr/share/games/csmash/wav/{word}.wav",
    "saytime": "/usr/share/saytime/{digit}.au",
    "scid": "/usr/share/scid/sounds/{digit}.wav",
    "tuxpaint": "/usr/share/tuxpaint/stamps/symbols/math/{digit}.ogg",
    "tuxpaint-gb": "/usr/share/tuxpaint/stamps/symbols/math/{digit}_en_GB.ogg",
    "captcha": "{captcha}/data/{digit}/default.wav",
}

# Excluded from everything below, as `samples/make.py` uses them: flite's rms and espeak-ng's
# variants Alicia, Mike, f4 and m6.

RHVOICE = {  # voices whose licences allow any use, by the spelling they read: also with an accent
    "en": ("alan", "bdl", "clb", "slt"),
    "ru": ("aleksandr", "anatol", "anna", "elena", "irina", "natalia"),
    "pt-br": ("Leticia-F123",),
    "es": ("spomenka",),
}
PICO = {
    "en": ("en-GB", "en-US"),
    "de": ("de-DE",),
    "es": ("es-ES",),
    "fr": ("fr-FR",),
    "it": ("it-IT",),
}
FLITE = ("kal", "kal16", "awb", "slt")
ACCENTS = (
    "en-us",
    "en-gb",
    "en-gb-scotland",
    "en-gb-x-rp",
    "en-gb-x-gbclan",
    "en-gb-x-gbcwmd",
    "en-029",
    "en-us-nyc",
)
VARIANTS = (
    *("Alex", "Andrea", "Andy", "Annie", "Denis", "Diogo", "Gene", "Henrique", "Hugo", "Jacky"),
    *("Lee", "Marco", "Mario", "Michael", "adam", "anika", "antonio", "aunty", "belinda"),
    *("benjamin", "boris", "caleb", "david", "ed", "edward", "f1", "f2", "f3", "f5", "grandma"),
    *("grandpa", "gustave", "iven", "john", "kaukovalta", "klatt", "klatt2", "klatt4", "linda"),
    *("m1", "m2", "m3", "m4", "m5", "m7", "m8", "marcelo", "max", "michel", "norbert", "pablo"),
    *("paul", "pedro", "quincy", "rob", "robert", "sandro", "shelby", "steph", "travis", "victor"),
    *("whisper", "zac"),
)

# English digits as pronounced by speakers of other languages, in their own spelling.
SPELLED = {
    "fr": "ziro ouanne tou sri for faïve sixe sévenne éïte naïne",
    "de": "siroh uann tuh srieh fohr faif siks ßewwen eht nein",
    "nl": "ziero wan toe srie foor faajf siks sevven eet najn",
    "es": "síro uán tu zri for faiv six seven éit náin",
    "it": "ziro uan tu tri for faiv sics seven eit nain",
    "pt-br": "zirou uâne tu tri fór faive siks séven eite naine",
    "pl": "zirou łan tu sri for fajw siks sewen ejt najn",
    "cs": "zirou uan tu sri for fajv siks sevn ejt najn",
    "fi": "siirou uan tuu trii foor faiv siks seven eit nain",
    "sv": "sirå oann toh trih får fajv sicks seven ejt najn",
    "el": "ζίρο ουάν του θρι φορ φάιβ σιξ σέβεν έιτ νάιν",
    "ru": "зироу уан ту сри фор файв сикс сэвен эйт найн",
    "hi": "ज़ीरो वन टू थ्री फोर फाइव सिक्स सेवन एट नाइन",
    "te": "జీరో వన్ టూ త్రీ ఫోర్ ఫైవ్ సిక్స్ సెవెన్ ఎయిట్ నైన్",
}
FESTIVAL = {  # voices of other languages
    "lp_diphone": "it",
    "pc_diphone": "it",
    "czech_ph": "cs",
    "czech_dita": "cs",
    "czech_krb": "cs",
    "czech_machac": "cs",
    "suo_fi_lj_diphone": "fi",
    "hy_fi_mv_diphone": "fi",
    "upc_ca_ona_hts": "it",
}
