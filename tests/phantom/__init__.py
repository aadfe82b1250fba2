"""Tests of the phantom."""
