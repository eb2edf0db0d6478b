"""What one engine serves: a model on GPUs with vLLM's flags, all settled."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvsim.errors import KvsimError
from kvsim.gpu import catalog
from kvsim.gpu.cost.calibration import Calibration
from kvsim.gpu.model import ModelSpec
from kvsim.gpu.quantization import served_as
from kvsim.rules import rules_for
from kvsim.scenario.calibration import read_calibration
from kvsim.scenario.defaults import as_field_error, filled
from kvsim.scenario.engine import EngineSection


@dataclass(frozen=True)
class Served:
    """The part of a scenario that plans an engine; `kvsim.sim.build.Served` says who reads it.

    image_pixels: the greatest area of a picture, if it is given. folder: where files are sought first.
    """

    vllm_version: str
    model: str
    gpu: str
    engine: EngineSection
    calibration: str | None
    image_pixels: int | None
    folder: Path

    @property
    def model_spec(self) -> ModelSpec:
        """The model's shape, with the engine's dtype and quantization."""
        shape = model_shape(self.model, self.folder)
        return served_as(shape, self.vllm_version, self.engine.quantization, self.engine.dtype)

    @property
    def step_calibration(self) -> Calibration | None:
        """Numbers of the step times, where a file of them is named."""
        return read_calibration(self.calibration, self.folder, self.gpu) if self.calibration else None


def model_shape(name: str, folder: Path) -> ModelSpec:
    """Of the catalog, or of a config.json sought in `folder` first."""
    return catalog.model(catalog.config_file(name, folder) or name)


def filled_engine(
    engine: EngineSection, version: str, model: str, gpu: str, workload: Any, folder: Path
) -> EngineSection:
    """The engine section with every default of release, model, GPU and workload.

    Raises FieldError naming the flag for flags that do not go together or with the model.
    """
    try:
        shape = served_as(model_shape(model, folder), version, engine.quantization, engine.dtype)
    except KvsimError as error:
        raise as_field_error(error) from None
    num_loras: int = getattr(workload, "num_loras", 0)
    return filled(engine, rules_for(version), catalog.gpu(gpu), shape, num_loras)
