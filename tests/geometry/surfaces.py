"""The correlation of one pair of stacks, fetched from wherever it is computed."""

from linumpy.geometry.correlation import fetch_surfaces, start_correlation


def correlation_surface(*stacks_and_window, **options):
    return fetch_surfaces([start_correlation(*stacks_and_window, **options)])[0]
