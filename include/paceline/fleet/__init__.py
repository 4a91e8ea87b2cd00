"""The machines that may train: what each has, what runs on it besides, and where its engine and its data are."""

from paceline.fleet.check import Reached, check
from paceline.fleet.file import load
from paceline.fleet.machine import BackgroundApp, Fleet, Link, Machine

__all__ = ["BackgroundApp", "Fleet", "Link", "Reached", "Machine", "check", "load"]
