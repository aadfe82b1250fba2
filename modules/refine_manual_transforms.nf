// Transforms between slices that were made by hand, taken over into the registration.
//
// Takes the folder of transforms, and what the registration took.

include { gpu_flags } from './local/script'

process refine_manual_transforms {
    tag 'all slices'
    label 'brain'
    label 'gpu'

    input:
    path slices, stageAs: 'slices/*'
    path shifts, stageAs: 'shifts_xy.csv'
    path config, stageAs: 'slice_config.csv'
    path registration, stageAs: 'in/register_slices.json'
    tuple path(manual, stageAs: 'manual_transforms'), val(digest)
    stdin

    output:
    path 'models/register_slices.json', emit: registration
    path 'models/register_slices_metrics.json', emit: metrics, optional: true
    tuple val("${task.process}"), val('all slices'), env('SECONDS'), emit: time

    script:
    """
    linum_refine_manual_transforms.py slices shifts_xy.csv in/register_slices.json \\
        models/register_slices.json \\
        --manual_transforms_dir manual_transforms \\
        --slice_config slice_config.csv \\
        --params - \\
        ${gpu_flags(params.use_gpu, params.gpu_memory, task)}
    """

    stub:
    """
    mkdir models
    touch models/register_slices.json
    """
}
