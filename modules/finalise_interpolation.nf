// What became of all gaps, in the table of slices: published, and read by the report.

process finalise_interpolation {
    tag 'all slices'
    label 'light'

    input:
    path config, stageAs: 'in/slice_config.csv'
    path manifests, stageAs: 'fragments/*'

    output:
    path 'slice_config.csv', emit: config
    tuple val("${task.process}"), val('all slices'), env('SECONDS'), emit: time

    script:
    """
    mkdir -p fragments
    linum_finalise_interpolation.py in/slice_config.csv slice_config.csv \\
        --fragments fragments
    """

    stub:
    """
    cp in/slice_config.csv slice_config.csv
    """
}
