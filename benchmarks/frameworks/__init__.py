"""Measures how far from its deadline a training ends whose loop belongs to a library, such as XGBoost or Lightning."""
