// Which steps between slices stand out, and where they lead: to look at.

process analyze_shifts {
    tag 'all slices'
    label 'light'

    input:
    path shifts, stageAs: 'shifts_xy.csv'
    stdin

    output:
    path 'diagnostics/*', emit: diagnostics
    tuple val("${task.process}"), val('all slices'), env('SECONDS'), emit: time

    script:
    """
    linum_analyze_shifts.py shifts_xy.csv diagnostics --params -
    """

    stub:
    """
    mkdir diagnostics
    touch diagnostics/analyze_shifts.json diagnostics/shifts_drift.png
    touch diagnostics/shifts_xy_filtered.csv
    """
}
