// Where slices lie against each other, from the tissue that neighbours share.
//
// Takes all slices as one folder, both tables, and what was measured of pairs; all are solved together.

include { gpu_flags } from './local/script'

process register_slices {
    tag 'all slices'
    label 'brain'
    label 'gpu'

    input:
    path slices, stageAs: 'slices/*'
    path shifts, stageAs: 'shifts_xy.csv'
    path config, stageAs: 'slice_config.csv'
    path pairs, stageAs: 'pairs/*'
    stdin

    output:
    path 'models/register_slices.json', emit: registration
    path 'models/register_slices_metrics.json', emit: metrics, optional: true
    tuple val("${task.process}"), val('all slices'), env('SECONDS'), emit: time

    script:
    """
    linum_register_slices.py slices shifts_xy.csv models/register_slices.json \\
        --slice_config slice_config.csv \\
        --pairs pairs \\
        --params - \\
        ${gpu_flags(params.use_gpu, params.gpu_memory, task)}
    """

    stub:
    """
    mkdir models
    touch models/register_slices.json
    """
}
