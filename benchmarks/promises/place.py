"""The root folder of the project."""

from pathlib import Path

PROJECT = Path(__file__).parents[2]
