"""The model registry: numbered versions of a model, the champion among them, and the history of promotions.

Used by the evaluation and promotion operators, the demo, and services that serve the champion.
"""

from paceline.registry.manifest import FileRecord, ModelVersion, Promotion
from paceline.registry.registry import ChampionChangedError, Registry

__all__ = ["ChampionChangedError", "FileRecord", "ModelVersion", "Promotion", "Registry"]
