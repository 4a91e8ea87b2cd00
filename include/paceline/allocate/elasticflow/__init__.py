"""ElasticFlow's admission and allocation: each admitted job meets its deadline, all other jobs are rejected."""

from paceline.allocate.elasticflow._policy import ElasticFlow

__all__ = ["ElasticFlow"]
