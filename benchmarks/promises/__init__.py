"""Whether Paceline keeps the numbers that its guides promise, on real runs on this machine."""
