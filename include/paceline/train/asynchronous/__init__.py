"""Training on several machines: a parameter server, and workers that take turns with nobody.

``server`` runs in a container of its own; ``worker`` is what a ``track`` loop does where there is a server. The two
speak through ``peer``; which samples are whose is in ``shards``, what is trained is in ``vector``.
"""
