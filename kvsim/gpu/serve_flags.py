"""A vLLM command line, read as it is: flags that bear on memory are used, the rest is listed.

How flags may be written follows `FlexibleArgumentParser` of vLLM 0.33.0 (`utils/argparse_utils.py`).
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from kvsim.errors import KvsimError
from kvsim.gpu.command_line import CommandLine, read_words
from kvsim.gpu.flag_values import (
    VALUES,
    captures_nothing,
    optimization_level,
    plain_value,
    switch,
    whole_number,
)
from kvsim.gpu.known_flags import ALIASES, DRAFT_FLAGS, NOT_MODELLED, SWITCHES, known_flags, short_flags


@dataclass(frozen=True)
class ServeFlags:
    """What a command line says.

    values: by the names of `kvsim.plan_capacity`. ignored: flags without a bearing on memory, as written.
    unmodelled: flags that do bear on memory, in a way that is not modelled.
    unknown: flags that no vLLM has, each with the nearest that there is. version: of a docker image's tag.
    remarks: what else a reader should know of how the line was understood, a sentence each.
    config: the file of --config; its content comes in by `words_of_config`.
    """

    model: str | None
    values: dict[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    unmodelled: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    version: str | None = None
    config: str | None = None
    remarks: tuple[str, ...] = ()


def read_command(words: Sequence[str], config_words: Iterable[str] = ()) -> ServeFlags:
    """Read the words of a command line, or one string with all of it.

    config_words: of the --config file, which the command line's own flags overrule.
    Raises KvsimError naming the flag for a value that vLLM would not take.
    """
    line = read_words(words)
    reader = _Reader(line)
    reader.read(list(config_words))
    reader.model_is_positional = False
    reader.read(list(line.words))
    return reader.result()


class _Reader:
    def __init__(self, line: CommandLine) -> None:
        self.line = line
        self.rest: list[str] = []
        self.model: str | None = None
        self.model_is_positional = False
        self.model_flag: str | None = None
        self.config: str | None = None
        self.values: dict[str, Any] = dict(line.values)
        self.ignored: list[str] = []
        self.unmodelled: list[str] = []
        self.unknown: list[str] = []
        self.nested: dict[str, dict[str, Any]] = {}

    def read(self, words: list[str]) -> None:
        self.rest = words
        while self.rest:
            word = self.rest.pop(0)
            if not word.startswith("-") or word == "-":
                self._positional(word)
            else:
                self._flag(word)

    def result(self) -> ServeFlags:
        for flag, value in self.nested.items():
            self._use(flag, json.dumps(self.values.get(flag.replace("-", "_"), {}) | value))
        self._derive()
        return ServeFlags(
            self.model,
            self.values,
            tuple(self.ignored),
            tuple(self.unmodelled),
            tuple(self.unknown),
            self.line.version,
            self.config,
            (*self.line.remarks, *self._remarks()),
        )

    def _remarks(self) -> tuple[str, ...]:
        if self.model_is_positional and self.model_flag not in (None, self.model):
            return (f"--model {self.model_flag} has no effect beside {self.model}, which vLLM takes",)
        return ()

    def _positional(self, word: str) -> None:
        if self.model_is_positional:
            self.unknown.append(word)
            return
        self.model, self.model_is_positional = word, True

    def _flag(self, word: str) -> None:
        written, equals, value = word.partition("=")
        level = re.fullmatch(r"-O(\d|[a-z]+)?", written)
        if level and (level[1] or equals or (self.rest[:1] and self.rest[0] in "0123")):
            level_text = level[1] or (value if equals else self.rest.pop(0))
            self._use("optimization-level", level_text)
            return
        stem, dot, key = written.lstrip("-").partition(".")
        flag, setting = self._name(written, stem)
        if dot:
            self._nested(flag, key, value if equals else self._next(written))
        elif known_flags().get(flag) == "switch":
            self._switch(flag, setting, word, value if equals else None)
        elif flag in known_flags():
            self._valued(flag, word, value if equals else None)
        else:
            self._not_known(word, flag, equals)

    def _name(self, written: str, stem: str) -> tuple[str, bool]:
        """The flag's full name, and what it sets if it is a switch."""
        known, short = known_flags(), short_flags()
        if written.partition(".")[0] in short:
            return short[written.partition(".")[0]], True
        name = stem.replace("_", "-")
        name = ALIASES.get(name, name)
        if name in known:
            return name, True
        for prefix, put in (("no-", ""), ("disable-", "enable-"), ("no-disable-", "enable-")):
            opposite = put + name.removeprefix(prefix)
            if name.startswith(prefix) and known.get(opposite) == "switch":
                return opposite, prefix == "no-disable-"
        beginnings = [each for each in known if each.startswith(name)] if len(name) > 3 else []
        return (beginnings[0], True) if len(beginnings) == 1 else (name, True)

    def _next(self, written: str) -> str:
        if not self.rest:
            raise KvsimError(f"{written}: its value is missing")
        return self.rest.pop(0)

    def _switch(self, flag: str, setting: bool, word: str, value: str | None) -> None:
        if value is None and self.rest and self.rest[0].lower() in ("true", "false"):  # releases up to 0.8
            value = self.rest.pop(0)
            word += f" {value}"
        if value is not None and not switch(value, f"--{flag}"):
            setting = not setting
        if flag not in SWITCHES:
            self._list(flag, word)
        elif flag == "enable-hybrid-kv-cache-manager":
            self.values["disable_hybrid_kv_cache_manager"] = not setting
        else:
            self.values[flag.replace("-", "_")] = setting

    def _valued(self, flag: str, word: str, value: str | None) -> None:
        kind = known_flags()[flag]
        if kind == "value" or flag in VALUES:
            text = value if value is not None else self._next(word)
            if not self._use(flag, text):
                self._list(flag, word if value is not None else f"{word} {text}")
            return
        taken = [word]
        while value is None and self.rest and not self.rest[0].startswith("-") and self._spare():
            taken.append(self.rest.pop(0))
            if kind == "optional":
                break
        self._list(flag, " ".join(taken))

    def _list(self, flag: str, written: str) -> None:
        (self.unmodelled if flag in NOT_MODELLED else self.ignored).append(written)

    def _spare(self) -> bool:
        """Whether a word that stands free may go to a list: not if it is the only one left for the model."""
        return (
            self.model is not None
            or any(
                word in ("--model", "--config") or word.startswith(("--model=", "--config="))
                for word in self.rest
            )
            or sum(not word.startswith("-") for word in self.rest) > 1
        )

    def _use(self, flag: str, text: str) -> bool:
        """Take a value that bears on memory; False for one that does not."""
        if flag == "model":
            self.model_flag = text
            self.model = self.model if self.model_is_positional else text
        elif flag == "config":
            self.config = text
        elif flag in DRAFT_FLAGS:
            drafts = self.values.setdefault("speculative_config", {})
            number = flag == "spec-tokens"
            drafts[DRAFT_FLAGS[flag]] = whole_number(text, f"--{flag}") if number else text
        elif flag == "optimization-level":
            if optimization_level(text, "-O") == 0:
                self.values["enforce_eager"] = True  # neither compiled nor captured
            else:
                self.ignored.append(f"-O {text}")
        elif flag == "compilation-config" and text.isdigit():
            return self._use("optimization-level", text)
        elif flag in VALUES:
            self.values[flag.replace("-", "_")] = VALUES[flag](text, f"--{flag}")
        else:
            return False
        return True

    def _nested(self, flag: str, keys: str, text: str) -> None:
        """--json-arg.key1.key2 value: one key of a JSON object."""
        if flag not in VALUES:
            label = f"--{flag}.{keys} {text}"
            (self.ignored if flag in known_flags() else self.unknown).append(label)
            return
        target = self.nested.setdefault(flag, {})
        *path, last = keys.rstrip("+").split(".")
        for key in path:
            found = target.setdefault(key, {})
            if not isinstance(found, dict):
                raise KvsimError(f"--{flag}.{keys}: {key} is already a value")
            target = found
        target[last] = text.split(",") if keys.endswith("+") else plain_value(text)

    def _not_known(self, word: str, flag: str, equals: str) -> None:
        close = get_close_matches(flag, known_flags(), n=1, cutoff=0.7)
        meant = [each for each in known_flags() if flag and each.startswith(flag)]
        text = word
        if not equals and self.rest and not self.rest[0].startswith("-") and self._spare():
            text += f" {self.rest.pop(0)}"
        if len(meant) > 1:
            some = ", ".join(f"--{each}" for each in meant[:4]) + (", ..." if len(meant) > 4 else "")
            self.unknown.append(f"{text} (could be {some})")
        else:
            self.unknown.append(f"{text} (nearest: --{close[0]})" if close else text)

    def _derive(self) -> None:
        """What follows for memory from flags that are not about it."""
        compilation = self.values.pop("compilation_config", {})
        if captures_nothing(compilation):
            self.values.setdefault("enforce_eager", True)
        if self.values.get("quantization", "").lower() == "none":
            del self.values["quantization"]


def words_of_config(content: Mapping[str, Any]) -> Iterator[str]:
    """The flags of a --config file as command-line words (`load_config_file`)."""
    for key, value in content.items():
        name = f"--{str(key).replace('_', '-')}"
        if isinstance(value, bool):
            yield name if value else f"--no-{name[2:]}"
        elif isinstance(value, list):
            yield name
            yield from map(str, value)
        elif isinstance(value, Mapping):
            yield from (name, json.dumps(value, default=str))
        elif value is not None:
            yield f"{name}={value}"
