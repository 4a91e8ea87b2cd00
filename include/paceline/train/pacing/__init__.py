"""Adapts training to its share of the processor, and predicts when training converges."""
