// Chained mode: the acquisition's focal surface taken off every tile.
//
// Takes the models of learn_models; does not learn from this slice alone.

include { gpu_flags } from './local/script'

process detect_focal_curvature {
    tag "z${slice_id}"
    label 'slice'
    label 'intermediate'
    label 'gpu'

    input:
    tuple val(slice_id), path(grid)
    path models, stageAs: 'learned/*'
    stdin

    output:
    tuple val(slice_id), path("focal_z${slice_id}.ome.zarr"), emit: grid
    tuple val("${task.process}"), val("z${slice_id}"), env('SECONDS'), emit: time

    script:
    """
    linum_detect_focal_curvature.py ${grid} focal_z${slice_id}.ome.zarr \\
        --models learned \\
        --params - \\
        ${gpu_flags(params.use_gpu, params.gpu_memory, task)}
    """

    stub:
    """
    mkdir focal_z${slice_id}.ome.zarr
    """
}
