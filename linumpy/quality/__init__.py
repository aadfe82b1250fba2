"""How good a reconstruction is: figures that hold a run against the phantom's known truth."""
