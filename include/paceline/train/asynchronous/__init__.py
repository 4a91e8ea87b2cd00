"""Training on several machines: a parameter server, and workers that come and go.

``__main__`` runs a ``server`` in a container of its own; ``worker`` is what a ``track`` loop does where there is one.
The two speak through ``peer``, which ``handshake`` lets in, and agree on what is in ``plan``. What the server knows is
in ``training``, which samples are whose in ``shards``; ``vector`` is what is trained, as a row of numbers. Several
processes can hold ranges of that row: ``spread`` is the server's side of it, ``part`` such a process, ``ranges`` a
worker's way to all of them.
"""
