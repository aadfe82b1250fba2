// Glitches of the stage: a clean table of shifts, and the slices that they concern marked.

process detect_rehoming {
    tag 'all slices'
    label 'light'

    input:
    path shifts, stageAs: 'in/shifts_xy.csv'
    path config, stageAs: 'in/slice_config.csv'
    stdin

    output:
    path 'shifts_xy_clean.csv', emit: shifts
    path 'slice_config.csv', emit: config
    path 'diagnostics/rehoming_*', emit: diagnostics
    tuple val("${task.process}"), val('all slices'), env('SECONDS'), emit: time

    script:
    """
    linum_detect_rehoming.py in/shifts_xy.csv shifts_xy_clean.csv \\
        --slice_config_in in/slice_config.csv \\
        --slice_config_out slice_config.csv \\
        --diagnostics diagnostics \\
        --params -
    """

    stub:
    """
    mkdir diagnostics
    touch diagnostics/rehoming_report.json diagnostics/rehoming_plot.png
    cp in/slice_config.csv slice_config.csv
    echo fixed_id,moving_id,x_shift,y_shift,x_shift_mm,y_shift_mm,reliable > shifts_xy_clean.csv
    """
}
