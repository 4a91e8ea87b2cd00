"""The fleet: its machines with their resources, background applications, engines, links and data sets."""

from paceline.fleet._file import load
from paceline.fleet._machine import BackgroundApp, Fleet, Link, Machine
from paceline.fleet.check import EngineCheck, check, check_nodes

__all__ = ["BackgroundApp", "Fleet", "Link", "EngineCheck", "Machine", "check", "check_nodes", "load"]
