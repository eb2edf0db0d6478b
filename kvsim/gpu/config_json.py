"""Values out of a model's ``config.json``, checked: a bad one is told by its key."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvsim.errors import KvsimError

Config = Mapping[str, Any]
MAX_SIZE = 2**40


def read_json(path: Path) -> Any:
    """Content of a JSON file in UTF-8, with or without a byte order mark; raises KvsimError."""
    try:
        return json.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        problem = error.strerror or str(error)
    except RecursionError:
        problem = "nested too deeply"
    except UnicodeDecodeError:
        problem = "not UTF-8 text"
    except json.JSONDecodeError as error:
        problem = f"not JSON at line {error.lineno} column {error.colno}: {error.msg}"
    except ValueError:  # Python's own limit on digits
        problem = "a number in it has thousands of digits"
    raise KvsimError(f"{path}: cannot be read as a model's config.json: {problem}")


def shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def section(config: Config, key: str) -> Config:
    """A nested object; empty if absent."""
    value = config.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise KvsimError(f"model: {key} is {shown(value)}, wanted an object with keys")
    return value or {}


def listed(config: Config, key: str) -> list[Any]:
    value = config.get(key)
    if value is not None and not isinstance(value, list | tuple):
        raise KvsimError(f"model: {key} is {shown(value)}, wanted a list")
    return list(value or ())


def integer(config: Config, *keys: str, least: int = 0, most: int = MAX_SIZE) -> int:
    """First of the keys that is present, as an int in least .. most; 0 if none is."""
    key = next((k for k in keys if config.get(k) is not None), None)
    if key is None:
        return 0
    value = config[key]
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise KvsimError(f"model: {key} is {shown(value)}, wanted a whole number from {least} to {most}")
    return value


def size(config: Config, *keys: str, required: bool = False, most: int = MAX_SIZE) -> int:
    """Like `_integer`, but a 0 that is written down is refused."""
    value = integer(config, *keys, least=1, most=most)
    if required and not value:
        raise KvsimError(f"model: {keys[0]} is missing")
    return value
