"""What a scenario names (release, model, GPU, calibration): found, spelled as the catalog does, pinned."""

import hashlib
import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, WithJsonSchema

from kvsim.errors import KvsimError
from kvsim.gpu import catalog
from kvsim.rules import releases, rules_for
from kvsim.scenario.calibration import digest
from kvsim.workload.checks import shown


def folder_of(info: ValidationInfo) -> Path:
    """Where the scenario file stands; the working directory for one made in Python."""
    return Path((info.context or {}).get("folder", ""))


def _version(value: Any) -> str:
    """ "0.33" for 0.33, "0.33" and "0.33.0"."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{shown(value)} is not a release of vLLM such as 0.33")
    try:
        return rules_for(str(value)).version
    except KvsimError as error:
        raise ValueError(str(error).removeprefix("vllm_version: ")) from None


def _version_schema() -> dict[str, Any]:
    """What `_version` takes."""
    numbers = [float(name) for name in releases() if str(float(name)) == name]
    text = {"type": "string", "pattern": rf"^({'|'.join(map(re.escape, releases()))})(\..*)?$"}
    return {"anyOf": [{"enum": numbers}, text]}


def _gpu(value: str) -> str:
    """The catalog's spelling."""
    try:
        return catalog.gpu(value).name
    except KvsimError as error:
        raise ValueError(str(error).removeprefix("gpu: ")) from None


def _model(value: str, info: ValidationInfo) -> str:
    """The catalog's spelling; a path to a config.json stays as it is."""
    try:
        path = catalog.config_file(value, folder_of(info))
        name = catalog.model(path or value).name
    except KvsimError as error:
        raise ValueError(str(error).removeprefix("model: ")) from None
    return value if path else name


def pinned_model(name: str, given: str | None, folder: Path) -> str | None:
    """SHA-256 of the config.json that `name` leads to, None for a catalog's model; raises ValueError if
    another is `given`.
    """
    path = catalog.config_file(name, folder)
    if path is None:
        if given is not None:
            raise ValueError("goes with a config.json as model; leave it out")
        return None
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if given not in (None, found):
        raise ValueError(f"{path} holds another model, with {found}")
    return found


def pinned_calibration(name: str | None, given: str | None, folder: Path) -> str | None:
    """SHA-256 of the calibration file; raises ValueError if another is `given`."""
    if name is None:
        if given is not None:
            raise ValueError("goes with a calibration; leave it out")
        return None
    found = digest(name, folder)
    if given not in (None, found):
        raise ValueError(f"{name} holds another calibration, with {found}")
    return found


Text = Annotated[str, Field(min_length=1, max_length=500)]
Version = Annotated[str, BeforeValidator(_version), WithJsonSchema(_version_schema())]
ModelName = Annotated[Text, AfterValidator(_model)]
GpuName = Annotated[Text, AfterValidator(_gpu)]
