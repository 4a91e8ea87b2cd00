"""Faults of the cluster, of its nodes and of the worker process, while a job trains in a pod."""
