"""How near to their deadlines real trainings end, and on how many cores: the tables of DECOR-NN, side by side."""
