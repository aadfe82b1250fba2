// All slices in one volume, with its pyramid: the brain.
//
// Takes slices where the stage left them, or, in chained mode, already on their common canvas, and what was
// measured of pairs.

include { gpu_flags; gpus_flag } from './local/script'

process stack_slices_motor {
    tag "${subject}"
    label 'brain'
    label 'gpu'

    input:
    val subject
    path slices, stageAs: 'slices/*'
    path shifts, stageAs: 'shifts_xy.csv'
    path config, stageAs: 'slice_config.csv'
    path registration
    path pairs, stageAs: 'pairs/*'
    val already_aligned
    stdin

    output:
    path "${subject}.ome.zarr", emit: brain
    path 'models/stack_slices_motor.json', emit: model
    path 'models/stack_slices_motor_metrics.json', emit: metrics, optional: true
    path 'z_matches.csv', emit: matches
    path "previews/${subject}.png", emit: preview
    tuple val("${task.process}"), val("${subject}"), env('SECONDS'), emit: time

    script:
    // Slices on the canvas are corrected already.
    def places = already_aligned ? '--no_xy_shift' : params.overlap_attenuation_enabled ? '--pairs pairs' : ''
    """
    linum_stack_slices_motor.py slices shifts_xy.csv ${subject}.ome.zarr \\
        --registration ${registration} \\
        --slice_config slice_config.csv \\
        --output_model models/stack_slices_motor.json \\
        --z_matches z_matches.csv \\
        --preview previews/${subject}.png \\
        --params - \\
        ${gpu_flags(params.use_gpu, params.gpu_memory, task)} ${gpus_flag(params.use_gpu, params.gpu_count, task)} ${places}
    """

    stub:
    """
    mkdir -p ${subject}.ome.zarr models previews
    touch models/stack_slices_motor.json previews/${subject}.png
    echo fixed_id,moving_id,overlap_voxels,moving_z_start > z_matches.csv
    """
}
