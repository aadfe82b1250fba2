"""Analyse and correct tables of shifts, from files to files with plots."""

from __future__ import annotations

from pathlib import Path

from linumpy.core.log import logger
from linumpy.io.models import save_model
from linumpy.io.tables import read_shifts, read_slice_config, write_shifts, write_slice_config
from linumpy.mosaic.analyze_shifts import ShiftAnalysis, analyze_shifts
from linumpy.mosaic.detect_rehoming import (
    RehomingReport,
    correct_rehoming,
    make_report,
    stamp_rehoming,
)
from linumpy.mosaic.shift_plots import plot_analysis, plot_rehoming
from linumpy.stage_params.gaps import RehomingParams, ShiftAnalysisParams


def analyze_shifts_file(
    shifts_path: Path, folder: Path, params: ShiftAnalysisParams, *, overwrite: bool = False
) -> ShiftAnalysis:
    """Write ``analyze_shifts.json``, ``shifts_xy_filtered.csv`` and ``shifts_drift.png``.

    Raises
    ------
    OutputExistsError
        When the filtered table exists and `overwrite` is false.
    """
    shifts = read_shifts(shifts_path)
    analysis, filtered = analyze_shifts(shifts, params)
    write_shifts(folder / "shifts_xy_filtered.csv", filtered, corrections=True, overwrite=overwrite)
    save_model(folder, "analyze_shifts", analysis)
    plot_analysis(shifts, filtered, analysis, folder / "shifts_drift.png")
    return analysis


def clean_shifts_file(
    shifts_path: Path,
    output: Path,
    params: RehomingParams,
    *,
    config_in: Path | None = None,
    config_out: Path | None = None,
    diagnostics: Path | None = None,
    overwrite: bool = False,
) -> RehomingReport:
    """Clean a table of shifts, and write the cleaned one.

    Parameters
    ----------
    shifts_path, output
        ``shifts_xy.csv`` to read and ``shifts_xy_clean.csv`` to write.
    config_in, config_out
        ``slice_config.csv`` to read and to write stamped.
    diagnostics
        Folder for ``rehoming_report.json`` and ``rehoming_plot.png``.
    """
    shifts = read_shifts(shifts_path)
    rows = None if config_in is None else read_slice_config(config_in)
    cleaned, events = correct_rehoming(shifts, params)
    report = make_report(cleaned, events, params)
    for event in events:
        logger.warning(
            "slice z%02d: stage step of (%.3f, %.3f) mm, %s",
            event.slice_id,
            *event.step_mm,
            f"{event.kind}, taken as ({event.corrected_mm[0]:.3f}, {event.corrected_mm[1]:.3f}) mm"
            if event.mended
            else "large and lasting: kept, not reliable",
        )
    if diagnostics is not None:
        save_model(diagnostics, "rehoming_report", report)
        plot_rehoming(shifts, cleaned, events, diagnostics / "rehoming_plot.png")
    if config_out is not None and rows is not None:
        stamped = stamp_rehoming(rows, cleaned, events)
        write_slice_config(config_out, stamped, overwrite=overwrite)
    write_shifts(output, cleaned, corrections=True, overwrite=overwrite)
    return report
