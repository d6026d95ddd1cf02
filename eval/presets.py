"""Named settings of fine-tuning; keys that are given beside a preset's name replace its values one by one.

``paper`` is how sahajBERT and the models beside it were fine-tuned: Diskin et al., "Distributed Deep Learning in Open
Collaborations" (NeurIPS 2021), with the scripts ``sahajbert/train_ner.py`` and ``train_ncc.py`` of
github.com/yandex-research/DeDLOC and the command lines of the README beside them. Those state rate, epochs, batch,
length, patience and threshold, both counted on the validation loss; the rest is what ``transformers.Trainer`` does
when nothing is said: no warmup, no weight decay, and the dropout of the model's own configuration.

``default`` is what holds where nothing is given, the defaults of :class:`eval.settings.FineTuningSettings`: for small
models that were pretrained from scratch. Models of a hundred million parameters and more usually need a tenth of its
rate (Devlin et al., "BERT", NAACL 2019, appendix A.3: 2e-5 to 5e-5).
"""

from __future__ import annotations

from typing import Any

PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": {
        "learning_rate": 1e-5,
        "epochs": 20,
        "batch_size": 128,
        "max_length": 128,
        "warmup_fraction": 0.0,
        "weight_decay": 0.0,
        "dropout": None,
        "patience": 3,
        "threshold": 0.01,
    },
}
"""Values by name of the preset and key of the fine-tuning settings."""


def resolved(fine_tuning: Any) -> Any:
    """Fine-tuning settings as a recipe has them, with the values of their preset beside the keys that are given.

    What is no mapping, or names no preset that is known, stays as it is, for the settings' own check.
    """
    if not isinstance(fine_tuning, dict):
        return fine_tuning
    preset = fine_tuning.get("preset")
    return {**PRESETS.get(preset, {}), **fine_tuning} if isinstance(preset, str) else fine_tuning
