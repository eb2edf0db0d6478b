"""Models' names as people write them: which words name a shape, which a weight format, which a tuning.

``RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic`` is the shape Llama-3.1-8B with fp8 weights.
"""

import re

# Words that say how a model was tuned or packed, not what shape it has.
_TUNING = frozenset(
    ("instruct", "it", "pt", "hf", "base", "chat", "thinking", "meta", "unsloth", "class", "mtp")
)

_SIXTEEN_BIT = "16"
# Format by the words that people put behind a name, the longest first.
_FORMATS = (
    (r"(modelopt )?(nvfp4(a16)?|fp4)", "nvfp4"),
    (r"mxfp4", "mxfp4"),
    (r"(unsloth )?(dynamic )?(bnb|bitsandbytes|nf4)( 4 ?bit)?|unsloth,? 4 ?bit", "nf4"),
    (r"(modelopt |fbgemm )?fp8( (dynamic|static|block|per ?tensor|per ?channel|kv|w8a8))*", "fp8"),
    (r"(quantized[ .])?w8a(8|16)( int8)?|(gptq )?int8|gptq 8 ?bit|8 ?bit", "int8"),
    (
        r"(auto ?round |autoawq )?((awq|gptq)( marlin)?|wna16|(quantized[ .])?w4a16( g128)?)"
        r"( int ?4| 4 ?bit| w4a16| g128)*|int ?4|4 ?bit|auto ?round",
        "int4",
    ),
    (r"bf16|fp16|16 ?bit|bfloat16|float16", _SIXTEEN_BIT),
)


def key(name: str, dropped: frozenset[str] = frozenset()) -> str:
    """Letters and digits of a name in one case; words in `dropped` and the separators do not matter."""
    words = re.split(r"[-_.\s()/:,]+", name.lower())
    return "".join(word for word in words if word not in dropped)


def loose_key(name: str) -> str:
    """The same without the words of tuning and the dates of releases (2507, 1124)."""
    return key(re.sub(r"(?<![0-9a-zA-Z])\d{4}(?![0-9a-zA-Z])", " ", name), _TUNING)


def without_organisation(name: str) -> str:
    return name.rsplit("/", 1)[-1]


def without_remark(name: str) -> str:
    """The name without what is in parentheses behind it."""
    return re.sub(r"\s*\([^()]*\)\s*$", "", name)


def split_format(name: str) -> tuple[str, str | None]:
    """(name without its weight format, the format): a name in `QUANT_BYTES`, "16", or None if not named."""
    words = name.replace("-", " ").replace("_", " ")
    for pattern, kind in _FORMATS:
        found = re.search(rf"(?:^|[ (/.,]+)(?:{pattern})\)?(?=$|[ )/,])", words, re.I)
        if found and found.start():
            return name[: found.start()] + name[found.end() :], kind
    return name, None


def alternatives(name: str) -> tuple[str, ...]:
    """The names meant by one like "GLM-4.6/4.7"; empty if it is none."""
    number = r"\d+(?:\.\d+)?[a-zA-Z]?"
    found = re.fullmatch(rf"(?:[^/]+/)?([^/]*?)({number})\s*/\s*({number})((?:[-_ ].*)?)", name)
    if not found:
        return ()
    start, first, second, rest = found.groups()
    return f"{start}{first}{rest}", f"{start}{second}{rest}"
