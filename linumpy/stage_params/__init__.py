"""Parameters of all stages, free of heavy imports, as every ``--help`` needs them."""
