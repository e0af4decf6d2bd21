"""Rows from the Hugging Face hub, streamed, so that the data set is not downloaded whole. Knows no suite."""

from dataclasses import dataclass
from types import ModuleType

from lade.applications.bench.suites.sources import AbsentError, DataRow, MakePrompt
from lade.models.hub import ask

ROWS = 1000  # of a data set, at most


@dataclass(frozen=True)
class Hub:
    """The first rows of one split."""

    dataset: str
    config: str
    split: str
    prompt: MakePrompt
    revision: str | None = None
    hint: str = "pip install 'lade-decoding[hub]' where the hub can be reached"

    @property
    def name(self) -> str:
        return self.dataset

    def rows(self) -> list[DataRow]:
        from huggingface_hub import constants

        where = f"the hub's {self.dataset}"
        if constants.HF_HUB_OFFLINE:
            raise AbsentError(f"{where} is not used, because HF_HUB_OFFLINE is set")
        datasets = _datasets(where)
        try:
            ask()  # fails faster than `load_dataset`
            stream = datasets.load_dataset(
                self.dataset, self.config, split=self.split, revision=self.revision, streaming=True
            )
            return list(stream.take(ROWS))
        except Exception as error:  # the types of errors differ between versions
            raise AbsentError(f"{where} cannot be read ({type(error).__name__}: {error})") from error


def _datasets(where: str) -> ModuleType:
    try:
        import datasets
    except ImportError as error:
        raise AbsentError(f"{where} needs the package {error.name}, which is not installed") from error
    return datasets
