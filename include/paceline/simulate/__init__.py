"""Simulations: the speed of a distributed training here, a cluster shared by many jobs in ``cluster``."""
