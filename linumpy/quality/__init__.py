"""Quality of a run, by itself and by the truth of a phantom."""
