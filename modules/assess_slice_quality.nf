// How good each slice is, seen beside its neighbours; bad ones are left out from here on.
//
// Takes all slices as one folder, both tables, and what was measured of pairs. A slice that is left
// out already stays out.

include { gpu_flags } from './local/script'

process assess_slice_quality {
    tag 'all slices'
    label 'brain'
    label 'gpu'

    input:
    path slices, stageAs: 'slices/*'
    path shifts, stageAs: 'in/shifts_xy.csv'
    path config, stageAs: 'in/slice_config.csv'
    path pairs, stageAs: 'pairs/*'
    stdin

    output:
    path 'slice_config.csv', emit: config
    path 'models/*.json', emit: models
    tuple val("${task.process}"), val('all slices'), env('SECONDS'), emit: time

    script:
    """
    linum_assess_slice_quality.py slices \\
        --output models/assess_slice_quality.json \\
        --shifts in/shifts_xy.csv \\
        --slice_config_in in/slice_config.csv \\
        --slice_config_out slice_config.csv \\
        --pairs pairs \\
        --params - \\
        ${gpu_flags(params.use_gpu, params.gpu_memory, task)}
    """

    stub:
    """
    mkdir models
    touch models/assess_slice_quality.json
    cp in/slice_config.csv slice_config.csv
    """
}
