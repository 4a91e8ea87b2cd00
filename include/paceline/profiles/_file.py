"""The file of a device profile: JSON with the measured points and the names of the chosen regressions.

Fitting a regression to so few points again takes less time than to read a fitted one, and a file of data runs no code.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationInfo, field_validator

from paceline.profiles._functions import Function
from paceline.profiles._origin import Origin
from paceline.profiles.learn import Learned, regression_names

_Points = tuple[tuple[FiniteFloat, ...], ...]


class StoredFunction(BaseModel):
    """A learned function: ``points`` has the features and, as the last value, the target of each measured point."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    target: str
    features: tuple[str, ...] = Field(min_length=1)
    share: bool
    regressions: tuple[str, ...] = Field(min_length=1)
    mape_pct: FiniteFloat
    mape_sd_pct: FiniteFloat
    seed: int
    points: _Points = Field(min_length=1)

    @field_validator("regressions")
    @classmethod
    def _check_regressions(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        known = regression_names()
        for name in names:
            if name not in known:
                raise ValueError(f"got {name!r}, expected one of {', '.join(known)}")
        return names

    @field_validator("points")
    @classmethod
    def _check_points(cls, points: _Points, info: ValidationInfo) -> _Points:
        if {len(point) for point in points} != {len(info.data.get("features", ())) + 1}:
            raise ValueError("expected one value for each feature and the target")
        return points

    @classmethod
    def of(cls, learned: Learned) -> StoredFunction:
        """Return what to store of a learned function."""
        function = learned.function
        return cls(
            name=function.name,
            target=function.target,
            features=function.features,
            share=function.share,
            regressions=learned.regressions,
            mape_pct=learned.mape_pct,
            mape_sd_pct=learned.mape_sd_pct,
            seed=learned.seed,
            points=np.column_stack([learned.features, learned.target]).tolist(),
        )

    def learned(self) -> Learned:
        """Return the learned function."""
        function = Function(self.name, self.target, self.features, self.share)
        values = np.array(self.points, dtype=float)
        quality = self.mape_pct, self.mape_sd_pct
        return Learned(function, self.regressions, values[:, :-1], values[:, -1], *quality, self.seed)


class StoredProfile(BaseModel):
    """See :class:`paceline.profiles.DeviceProfile`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    format: Literal[3] = 3
    kind: str
    batch_sizes: tuple[int, ...]
    origin: Origin
    functions: tuple[StoredFunction, ...]
