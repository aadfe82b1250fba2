"""Parameters of all stages, where nothing heavy is loaded: what every ``--help`` needs."""
