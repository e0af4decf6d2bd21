"""Rows from the Hugging Face hub, read as a stream so that no whole data set is downloaded. Knows no suite."""

from dataclasses import dataclass
from types import ModuleType

from lade.applications.bench.suites.sources import AbsentError, MakePrompt, Row
from lade.models.hub import ask

ROWS = 1000  # of a large data set so many are enough


@dataclass(frozen=True)
class Hub:
    """The first rows of one split."""

    dataset: str
    config: str
    split: str
    prompt: MakePrompt
    revision: str | None = None
    hint: str = "pip install 'lade[hub]' where the hub can be reached"

    @property
    def name(self) -> str:
        return self.dataset

    def rows(self) -> list[Row]:
        from huggingface_hub import constants

        where = f"the hub's {self.dataset}"
        if constants.HF_HUB_OFFLINE:
            raise AbsentError(f"{where} is not asked for, since HF_HUB_OFFLINE is set")
        datasets = _datasets(where)
        try:
            ask()  # `load_dataset` would try for half a minute
            stream = datasets.load_dataset(
                self.dataset, self.config, split=self.split, revision=self.revision, streaming=True
            )
            return list(stream.take(ROWS))
        except Exception as error:  # of a transport that differs from version to version
            raise AbsentError(f"{where} cannot be read ({type(error).__name__}: {error})") from error


def _datasets(where: str) -> ModuleType:
    try:
        import datasets
    except ImportError as error:
        raise AbsentError(f"{where} needs the package {error.name}, which is not installed") from error
    return datasets
