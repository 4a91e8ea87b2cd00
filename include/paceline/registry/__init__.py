"""The model registry: numbered versions of a model, which of them is the champion, and since when.

Called by the evaluation and promotion operators, by the demo, and by whatever serves the champion.
"""

from paceline.registry.manifest import FileRecord, ModelVersion, Promotion
from paceline.registry.registry import Registry

__all__ = ["FileRecord", "ModelVersion", "Promotion", "Registry"]
