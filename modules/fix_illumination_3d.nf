// Chained mode: tiles divided by the acquisition's flat field.
//
// Takes the models of learn_models; does not learn from this slice alone.

include { gpu_flags } from './local/script'

process fix_illumination_3d {
    tag "z${slice_id}"
    label 'slice'
    label 'intermediate'
    label 'gpu'

    input:
    tuple val(slice_id), path(grid)
    path models, stageAs: 'learned/*'
    stdin

    output:
    tuple val(slice_id), path("illumination_z${slice_id}.ome.zarr"), emit: grid
    tuple val("${task.process}"), val("z${slice_id}"), env('SECONDS'), emit: time

    script:
    """
    linum_fix_illumination_3d.py ${grid} illumination_z${slice_id}.ome.zarr \\
        --models learned \\
        --params - \\
        ${gpu_flags(params.use_gpu, params.gpu_memory, task)}
    """

    stub:
    """
    mkdir illumination_z${slice_id}.ome.zarr
    """
}
