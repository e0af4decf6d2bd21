"""The arguments that lade adds to those of `model.generate`: checked when given, then against the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lade.base.wrappers import unwrapped
from lade.config.default import default_config
from lade.config.settings import LookaheadConfig, check_config
from lade.engine.method import Method
from lade.entry.methods import check_method
from lade.entry.reference import References, check_reference, references_of
from lade.target.contrast import Contrast, check_contrast, check_kind


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a call, checked against its model.

    Attributes:
        config: settings.
        references: one text for all prompts, or one per prompt.
        contrast: decode contrastively.
        method: draft with a model instead.
    """

    config: LookaheadConfig
    references: References | None = None
    contrast: Contrast | None = None
    method: Method | None = None


class Arguments:
    """The arguments as the user gives them, before the model is known.

    Raises:
        ValueError: an argument has the wrong type, or `method` is given with one of the others.
    """

    def __init__(
        self, config: LookaheadConfig | None, method: Method | None, reference: Any, contrast: Contrast | None
    ) -> None:
        check_config(config)
        check_method(method, config=config, reference=reference, contrast=contrast)
        if contrast is not None:
            check_kind(contrast)
        self._config, self._method, self._contrast = config, method, contrast
        self._references = references_of(reference)

    def options(self, model: Any) -> Options:
        """The options for a model; `config=None` stands for the process-wide settings.

        Raises:
            ValueError: an argument does not fit the model or the mode.
        """
        whole, config = unwrapped(model), self._config or default_config()
        if self._method is not None:
            self._method.check(whole)
        if self._contrast is not None:
            check_contrast(self._contrast, whole)
        check_reference(self._references, config, whole)
        return Options(config, self._references, self._contrast, self._method)
