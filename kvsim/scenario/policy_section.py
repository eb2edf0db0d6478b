"""The keys of a router: those of any, and a policy's parameters, read off its class."""

import dataclasses
import re
import typing
from functools import cache
from typing import Annotated, Any

from annotated_types import Unit
from pydantic import ConfigDict, Field, create_model

from kvsim.cluster.policy import Policy
from kvsim.scenario.engine import Section, key


class RouterKeys(Section):
    """What a router is told and how fast, whatever its policy."""

    model_config = ConfigDict(allow_inf_nan=False)

    kv_event_delay: Annotated[float, Field(ge=0, le=1e6)] = key(
        0.0, "how late KV events reach a router that reads them", "seconds", examples=[0.05]
    )
    kv_event_loss: Annotated[float, Field(ge=0, le=1)] = key(
        0.0, "KV-event messages that never arrive", "share of messages", examples=[0.01]
    )
    metrics_interval: Annotated[float, Field(ge=0, le=1e6)] | None = key(
        None,
        "between snapshots of the engines' metrics, for policies that take any; 0: fresh at each choice; "
        "the policy's own if absent",
        "seconds",
    )
    chars_per_token: Annotated[int, Field(ge=1, le=1000)] = key(
        4, "characters of a token, for policies that read text", "characters"
    )
    share: Annotated[float, Field(gt=0, le=1e9)] = key(
        1.0, "weight of this router among several: requests are dealt out by it, sessions whole"
    )


@cache
def policy_section(kind: type[Policy]) -> type[RouterKeys]:
    """The keys of a router with this policy: those of any router, then its parameters."""
    hints = typing.get_type_hints(kind, include_extras=True)
    description, meanings = told(kind)
    parameters: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if field.name in RouterKeys.model_fields:
            continue  # what any router has, such as chars_per_token
        default: Any = {"default": ...}
        if field.default is not dataclasses.MISSING:
            default = {"default": field.default}
        elif field.default_factory is not dataclasses.MISSING:
            default = {"default_factory": field.default_factory}
        unit = next((each.unit for each in _metadata(hints[field.name]) if isinstance(each, Unit)), None)
        parameters[field.name] = (
            hints[field.name],
            Field(
                **default,
                description=meanings.get(field.name),
                json_schema_extra={"x-unit": unit} if unit else None,
            ),
        )
    return create_model(kind.__name__, __base__=RouterKeys, __doc__=description, **parameters)


def _metadata(hint: Any) -> tuple[Any, ...]:
    """What `Annotated` says beside the type."""
    return getattr(hint, "__metadata__", ())


def told(kind: type[Policy]) -> tuple[str, dict[str, str]]:
    """What the docstring of a policy says of it, and of each parameter: sentences that begin "name: " or
    "name, name: ".
    """
    text = " ".join((kind.__doc__ or "").split())
    names = "|".join(field.name for field in dataclasses.fields(kind))
    if not names:
        return text, {}
    head, *parts = re.split(rf"(?:^|(?<=\. ))((?:{names})(?:, (?:{names}))*): ", text)
    meanings: dict[str, str] = {}
    for several, meaning in zip(parts[::2], parts[1::2], strict=True):
        meanings |= dict.fromkeys(several.split(", "), meaning.strip().removesuffix("."))
    return head.strip(), meanings
