"""Model files: a model to compare with in a small YAML file, named in a recipe by path, or by name if it is built in.

A model file holds what ``evaluation.compare_with.NAME`` of a recipe holds, see
:class:`eval.compared_settings.ComparedModel`. In a recipe the name or path alone stands for the model, or, with
``definition`` as one key among others, these others change it::

    compare_with:
      xlm-r-large: xlm-r-large
      indicbert: {definition: indicbert, local: copies/indic-bert}
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eval.compared_settings import ComparedModel
from eval.definitions import builtin, named, read_definition


def builtin_models() -> dict[str, Path]:
    """The model files that come with sahajflow, by name."""
    return builtin("model_definitions")


def expanded(models: Any, folder: Path, place: str = "evaluation.compare_with") -> Any:
    """A recipe's models with the content of their files in place of ``definition``; keys beside it replace the file's.

    Args:
        models: the mapping ``evaluation.compare_with`` as the recipe has it; what is none stays as it is.
        folder: where relative paths of model files start.
        place: where the models stand, for messages.

    Raises:
        UserError: there is no such file, or it is wrong.
    """
    models = named(models)
    if not isinstance(models, dict):
        return models
    return {
        name: {
            **read_definition(
                model["definition"], "model", ComparedModel, builtin_models(), folder, f"{place}.{name}.definition"
            ),
            **{key: value for key, value in model.items() if key != "definition"},
        }
        if isinstance(model, dict) and "definition" in model
        else model
        for name, model in models.items()
    }
