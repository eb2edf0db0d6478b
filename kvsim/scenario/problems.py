"""One clear line for what is wrong with a scenario: where, what, and what would be right."""

import typing
from collections.abc import Callable

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from kvsim.scenario.spelling import unknown_key
from kvsim.workload.checks import FieldError, not_whole, shown

Where = tuple[str, ...]

_HINTS = {
    "model": "a catalog name or Hugging Face id, such as Qwen/Qwen3-VL-2B-Instruct",
    "gpu": "a catalog name, such as rtx-4090",
    "workload": "a section with type: shared_prefix, image, chat, mix or trace",
    "method": "ngram or eagle",
    "num_speculative_tokens": "how many tokens are drafted each step",
    "bandwidth": "bytes per second",
    "acceptance": "the chance that a draft token is accepted, 0 to 1",
}
_KINDS = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text; put it in quotes",
    "model_type": "a mapping of keys to values",
    "model_attributes_type": "a mapping of keys to values",
    "dict_type": "a mapping of keys to values",
    "list_type": "a list",
    "finite_number": "a finite number",
}
_BOUNDS = {
    "greater_than": ("above", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("below", "lt"),
    "less_than_equal": ("at most", "le"),
}


def first_problem(error: ValidationError, schema: type[BaseModel]) -> tuple[Where, str, int]:
    """Path of the key, the sentence about it, and how many further problems there are.

    A misspelt key also makes its right spelling missing, so unknown keys come first.
    """
    problems = [_problem(details, schema) for details in error.errors(include_url=False)]
    problems.sort(key=lambda problem: not problem[1].startswith("unknown key"))
    return *problems[0], len(problems) - 1


def _problem(details: ErrorDetails, schema: type[BaseModel]) -> tuple[Where, str]:
    where = tuple(str(part) for part in details["loc"] if part != "[key]")
    kind, value = details["type"], details["input"]
    context = details.get("ctx", {})
    if kind == "value_error":
        return _own(where, context["error"])
    if kind == "extra_forbidden":
        return where, unknown_key(where[-1], list(_section(schema, where[:-1]).model_fields))
    if kind == "missing" or (value is None and kind in _KINDS):
        return where, f"missing; give {_HINTS.get(where[-1], 'a value')}"
    if kind == "int_type":
        return where, not_whole(value)
    if kind in _KINDS:
        return where, f"{shown(value)} is not {_KINDS[kind]}"
    if kind in _BOUNDS:
        words, key = _BOUNDS[kind]
        return where, f"{shown(value)} is out of range; give {words} {_number(context[key])}"
    if kind == "literal_error":
        return where, f"{shown(value)} is not known; one of {context['expected']}".replace("'", "")
    return where, f"{shown(value)}: {details['msg']}"


def _number(bound: float) -> str:
    return f"{bound:g}" if isinstance(bound, float) else str(bound)


def _own(where: Where, error: Exception) -> tuple[Where, str]:
    if isinstance(error, FieldError):
        return (*where, *error.field.split(".")), error.problem
    return where, str(error)


def _section(schema: type[BaseModel], where: Where) -> type[BaseModel]:
    """The model class of a nested section; some are kept by name."""
    parts = list(where)
    while parts:
        annotation = schema.model_fields[parts.pop(0)].annotation
        kinds = (annotation, *typing.get_args(annotation))
        if typing.get_origin(annotation) is dict:
            parts = parts[1:]
        schema = next(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))
    return schema


def locate(where: Where, problem: str, further: int, place: Callable[[Where], str]) -> str:
    """The whole line."""
    more = f" (+{further} more)" if further else ""
    return f"{place(where)}: {'.'.join(where)}: {problem}{more}"
