"""Checkpoints, and the state that a training job resumes from: objects, random numbers and the position in the data."""
