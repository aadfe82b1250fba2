// Slices that match no other are left out of the brain; the table says why.

process auto_exclude_slices {
    tag 'all slices'
    label 'light'

    input:
    path registration, stageAs: 'in/register_slices.json'
    path config, stageAs: 'in/slice_config.csv'
    stdin

    output:
    path 'slice_config.csv', emit: config
    path 'models/*', emit: models
    tuple val("${task.process}"), val('all slices'), env('SECONDS'), emit: time

    script:
    """
    linum_auto_exclude_slices.py in/register_slices.json in/slice_config.csv slice_config.csv \\
        --output_model models/auto_exclude_slices.json \\
        --params -
    """

    stub:
    """
    mkdir models
    touch models/auto_exclude_slices.json
    cp in/slice_config.csv slice_config.csv
    """
}
