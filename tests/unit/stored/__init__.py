"""What each release of Paceline stores, for the test that later versions read it."""
