"""Whether a value is wrong whatever else a scenario says, or only beside other values of it."""

from typing import Any

from pydantic import BaseModel, ValidationError

from kvsim.scenario.schema import Scenario


def is_allowed_alone(key: str, value: Any) -> bool:
    """Whether some section could hold this value of a dotted key.

    A workload checks itself as a whole and so does what lies deeper, so their values count as wrong.
    """
    section, _, rest = key.partition(".")
    kind = _section_class(section)
    if kind is None or not rest or "." in rest:
        return False
    try:
        kind.model_validate({rest: value})
    except ValidationError:
        return False
    return True


def _section_class(section: str) -> type[BaseModel] | None:
    field = Scenario.model_fields.get(section)
    kind = field.annotation if field else None
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None
