"""The model registry: numbered versions of a model, the champion among them, and the history of promotions.

``FileRegistry`` needs only a folder; ``MlflowRegistry`` uses an MLflow server. The evaluation and promotion operators,
the drift check and services that serve the champion work with both.
"""

from paceline.registry._files import FileRegistry
from paceline.registry._mlflow import MlflowRegistry
from paceline.registry.base import (
    ChampionChangedError,
    ChampionHeldError,
    ModelChangedError,
    Registry,
    VersionNeededError,
)
from paceline.registry.manifest import FileRecord, ModelVersion, Promotion, ReferenceFile, VersionSummary

__all__ = [
    "ChampionChangedError",
    "ChampionHeldError",
    "FileRecord",
    "FileRegistry",
    "MlflowRegistry",
    "ModelChangedError",
    "ModelVersion",
    "Promotion",
    "ReferenceFile",
    "Registry",
    "VersionNeededError",
    "VersionSummary",
]
