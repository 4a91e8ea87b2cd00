"""Callbacks for libraries that own the training loop. Each module imports its library only when it is used."""
