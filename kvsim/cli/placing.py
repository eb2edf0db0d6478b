"""Where an error of a run comes from: the file and the key, or the option that set it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kvsim.errors import KvsimError
from kvsim.results import ResultsError
from kvsim.scenario import EngineSection, Scenario


@contextmanager
def placed(scenario: Scenario, file: Path, overrides: Sequence[str]) -> Iterator[None]:
    """Errors of the run that name no file begin with the scenario's, and with the key if it is known."""
    try:
        yield
    except ResultsError:
        raise
    except KvsimError as error:
        text = str(error)
        if text.startswith(tuple(_other_files(scenario))):
            raise
        if _first_word(text) in EngineSection.model_fields:
            text = f"engine.{text}"
        given = (f"--set {each}" for each in overrides if _key(each) == _first_word(text))
        raise KvsimError(f"{next(given, file)}: {text}") from None


def _first_word(text: str) -> str:
    return text.split(maxsplit=1)[0].rstrip(":")


def _other_files(scenario: Scenario) -> Iterator[str]:
    if scenario.trace_path is not None:
        yield str(scenario.trace_path)
    if Path(scenario.model).exists():
        yield scenario.model


def _key(override: str) -> str:
    return override.partition("=")[0].strip().replace("-", "_")
