"""Prompt notation of case files: `NAME:n`, `NAME:a-b`, `img(ID):n`, `out(REQ):n`, `out(REQ):a-b`."""

import re
from dataclasses import dataclass, field

_PIECE = re.compile(
    r"(?:img\((?P<image>[^()]+)\)|out\((?P<request>[^()]+)\)|(?P<stream>[^\s:()]+))"
    r":(?:(?P<first>\d+)-)?(?P<end>\d+)"
)
_STREAM_LENGTH = 1 << 24
PLACEHOLDER = 0  # the one token that stands for every picture


def pieces(text: str | list[str]) -> list[tuple[str, str, int, int]]:
    """(kind, name, first token, end) of each piece; kinds are stream, image and request."""
    out = []
    for piece in text.split() if isinstance(text, str) else text:
        match = _PIECE.fullmatch(piece)
        assert match, f"prompt piece {piece!r} is not understood"
        kind = next(kind for kind in ("stream", "image", "request") if match[kind])
        assert kind != "image" or match["first"] is None, f"{piece}: a picture has a length, not a range"
        out.append((kind, match[kind], int(match["first"] or 0), int(match["end"])))
    return out


@dataclass
class Prompts:
    """Token ids of pieces; two streams share no id, and a stream holds none twice."""

    _numbers: dict[str, int] = field(default_factory=dict)
    _max_tokens: dict[str, int] = field(default_factory=dict)

    def stream(self, name: str, first: int, end: int) -> list[int]:
        assert first <= end < _STREAM_LENGTH, f"{name}:{first}-{end} is no range of tokens"
        base = self._numbers.setdefault(name, len(self._numbers) + 1) * _STREAM_LENGTH
        return list(range(base + first, base + end))

    def output(self, request_id: str, max_tokens: int) -> list[int]:
        """What a request will sample; later prompts may name it."""
        self._max_tokens[request_id] = max_tokens
        return self.stream(f"out({request_id})", 0, max_tokens)

    def prompt(self, text: str | list[str]) -> tuple[list[int], tuple[tuple[str, int, int], ...]]:
        """Token ids, and the pictures as (identity, offset, tokens)."""
        tokens: list[int] = []
        features = []
        for kind, name, first, end in pieces(text):
            if kind == "image":
                features.append((name, len(tokens), end))
                tokens += [PLACEHOLDER] * end
            elif kind == "request":
                tokens += self._earlier_output(name, first, end)
            else:
                tokens += self.stream(name, first, end)
        return tokens, tuple(features)

    def _earlier_output(self, request_id: str, first: int, end: int) -> list[int]:
        assert request_id in self._max_tokens, f"out({request_id}): no earlier request has this id"
        assert end <= self._max_tokens[request_id], f"out({request_id}):{end} is longer than its output"
        return self.stream(f"out({request_id})", first, end)
