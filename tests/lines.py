"""Lines of mixed scripts, emoji, accents, control characters and white space, the same for the same seed."""

import random
import unicodedata

RANGES = {
    "latin": [(0x41, 0x5A), (0x61, 0x7A)], "latin_more": [(0xC0, 0x24F), (0x1E00, 0x1EFF)], "greek": [(0x391, 0x3C9)],
    "cyrillic": [(0x410, 0x451)], "hebrew": [(0x5D0, 0x5EA)], "arabic": [(0x621, 0x64A), (0x64B, 0x652)],
    "devanagari": [(0x905, 0x939), (0x93E, 0x94D)], "thai": [(0xE01, 0xE3A), (0xE40, 0xE4E)], "kana": [(0x3041, 0x30FA)],
    "han": [(0x4E00, 0x9FA5)], "han_rare": [(0x20000, 0x20050), (0xF900, 0xFA20)], "hangul": [(0xAC00, 0xD7A3)],
    "digits": [(0x30, 0x39)], "digits_more": [(0x660, 0x669), (0x966, 0x96F), (0xB2, 0xB3), (0x2160, 0x216B)],
    "marks": [(0x21, 0x2F), (0x3A, 0x40), (0x5B, 0x60), (0x7B, 0x7E)],
    "marks_more": [(0xA1, 0xBF), (0x2010, 0x2027), (0x2030, 0x205E), (0x3001, 0x3011)],
    "symbols": [(0x20A0, 0x20BF), (0x2190, 0x21FF), (0x2200, 0x22FF), (0x2460, 0x2473)],
    "emoji": [(0x1F300, 0x1F64F), (0x1F680, 0x1F6C5), (0x2600, 0x26FF)], "combining": [(0x300, 0x36F)],
    "math": [(0x1D400, 0x1D454)],
}  # fmt: skip
SPACES = [
    " ",
    " ",
    " ",
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\r\n",
    "\u00a0",
    "\u2003",
    "\u3000",
    "\u2028",
    "\u1680",
    "\v",
    "\f",
]
CONTROLS = ["\x00", "\x07", "\x1b", "\x1c", "\x1f", "\x7f", "\x85", "\u00ad", "\u200b", "\u200d", "\u200e", "\ufeff",
            "\ufffd", "\ufffe", "\ue000", "\u0378"]  # fmt: skip
WORDS = ["the", "don't", "I'll", "we've", "THE", "naïve", "Straße", "İstanbul", "ΣΑΣ", "ﬁne", "e-mail", "3.14", "x_1",
         "http://a.b/c?d=e&f", "C++", "¿qué?", "👩‍👩‍👧", "🇩🇪", "👍🏽", "½", "№", "…", "'s", "'S", "’s", "ǅ", "ﷺ", "a" * 120]  # fmt: skip


def lines(count, seed=0):
    """That many lines, none of them empty."""
    chosen = random.Random(seed)
    found = []
    while len(found) < count:
        parts = []
        for _ in range(chosen.randint(1, 12)):
            kind = chosen.random()
            if kind < 0.25:
                parts.append(chosen.choice(WORDS))
            elif kind < 0.3:
                parts.append(chosen.choice(CONTROLS))
            else:
                ranges = RANGES[chosen.choice(list(RANGES))]
                parts.append("".join(chr(chosen.randint(*chosen.choice(ranges))) for _ in range(chosen.randint(1, 8))))
            if chosen.random() < 0.8:
                parts.append(chosen.choice(SPACES))
        line = "".join(parts)
        form = chosen.choice([None, None, "NFC", "NFD", "NFKD"])
        found.append(unicodedata.normalize(form, line) if form else line)
    return found
