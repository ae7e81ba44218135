"""Lines that tokenizers disagree about, and random lines from the same parts."""

from __future__ import annotations

import random
from collections.abc import Iterator

WRITTEN = (
    "The quick brown fox jumps over the lazy dog.",
    "I'm sure they've said we'd better not; she'll do it, it's 'S and 'T.",
    "1234567890 3.14159 2,000,000 0x1F 1e-9 v2.0.1 2026-11-30T01:10:21Z",
    "a1b22c333 ١٢٣ १२३ ²³¹ ½ Ⅷ ㊿ 𝟘𝟙",
    "    four spaces\tand\ttabs   \n\n\n  then lines \r\n end  ",
    " ",
    "  ",
    "\n",
    "\n\n \n",
    "\t\t\tx",
    "\u00a0nbsp\u2003em\u3000ideographic\u200bzero",
    "trailing space ",
    "Zürich, café, naïve, Ångström, ñandú, cafe\u0301",
    "日本語のテキスト、中文文本，한국어 텍스트",
    "Привет, мир! مرحبا بالعالم שלום עולם สวัสดีชาวโลก नमस्ते दुनिया",
    "😀👍🏽👨\u200d👩\u200d👧\u200d👦🇨🇭 ☃️ ❤️",
    'def f(x: int) -> str:\n    return f"{x!r}"  # comment\n\n\nclass A:\n\tpass\n',
    '<div class="a">x &amp; y</div><!-- c -->',
    "SELECT * FROM t WHERE a <> 'b' AND c >= 10;",
    "https://example.com/a/b?c=d&e=%20f#g user@example.com",
    "!!! ??? ... --- ### $$$ %%% ^^^ &&& *** ((( ))) [[[ ]]] {{{ }}} |||",
    "\\n \\\\ \\u1234 \"quoted\" `tick` 'single'",
    "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n",
    "<|endoftext|><|im_end|><|im_start|>",
    " <|im_start|> x<|im_end|>y <|im_sta rt|> <|im_start|",
    "<repo_name>a<file_sep>b<filename>c<gh_stars>1 <issue_start><empty_output>",
    "\u0000\u0001\u007f control",
    "\ufffd replacement \ufeff bom",
    "ﬁ ligature Ⅻ ㎏ ﷺ",
    "CamelCaseWord snake_case_word kebab-case-word SCREAMING",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "_ __ ___ ____ -_-_- =_=",
)
_RANGES = (
    (0x20, 0x7E), (0x20, 0x7E), (0x20, 0x7E), (0x30, 0x39), (0xA0, 0x17F), (0x300, 0x36F), (0x370, 0x52F), (0x590, 0x6FF),
    (0x900, 0x97F), (0xE00, 0xE7F), (0x2000, 0x206F), (0x2070, 0x209F), (0x2150, 0x218B), (0x2200, 0x22FF),
    (0x3000, 0x30FF), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3), (0xFB00, 0xFB4F), (0xFF00, 0xFFEF), (0x1F300, 0x1F6FF),
    (0x1D7CE, 0x1D7FF),
)  # fmt: skip
_SPACES = (" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", "\u00a0", "\u3000")


def varied_lines(count: int, seed: int = 7) -> Iterator[str]:
    """The written lines, then random ones until there are `count`."""
    yield from WRITTEN
    chance = random.Random(seed)
    words = [word for line in WRITTEN for word in line.split()]
    for _ in range(count - len(WRITTEN)):
        parts: list[str] = []
        for _ in range(chance.randint(1, 12)):
            kind = chance.random()
            if kind < 0.4:
                parts.append(chance.choice(words))
            elif kind < 0.55:
                parts.append(str(chance.randrange(10 ** chance.randint(1, 9))))
            else:
                low, high = chance.choice(_RANGES)
                parts.append("".join(chr(chance.randint(low, high)) for _ in range(chance.randint(1, 5))))
            if chance.random() < 0.7:
                parts.append(chance.choice(_SPACES))
        yield "".join(parts)
