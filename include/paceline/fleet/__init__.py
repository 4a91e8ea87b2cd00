"""The fleet: its machines with their resources, background applications, engines, links and data sets."""

from paceline.fleet.check import EngineCheck, check
from paceline.fleet.file import load
from paceline.fleet.machine import BackgroundApp, Fleet, Link, Machine

__all__ = ["BackgroundApp", "Fleet", "Link", "EngineCheck", "Machine", "check", "load"]
