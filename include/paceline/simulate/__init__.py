"""Simulations: ``parameter_servers`` models the speed of distributed training, ``cluster`` a cluster of many jobs."""
