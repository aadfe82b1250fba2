// Chained mode: tiles at the working resolution.
//
// Takes a native grid. The first stage of the chain; fused runs have all of it in one task.

include { gpu_flags } from './local/script'

process resample_mosaic_grid {
    tag "z${slice_id}"
    label 'slice'
    label 'intermediate'
    label 'gpu'

    input:
    tuple val(slice_id), path(grid), val(digest)
    stdin

    output:
    tuple val(slice_id), path("resampled_z${slice_id}.ome.zarr"), emit: grid
    tuple val("${task.process}"), val("z${slice_id}"), env('SECONDS'), emit: time

    script:
    """
    linum_resample_mosaic_grid.py ${grid} resampled_z${slice_id}.ome.zarr \\
        --params - \\
        ${gpu_flags(params.use_gpu, params.gpu_memory, task)}
    """

    stub:
    """
    mkdir resampled_z${slice_id}.ome.zarr
    """
}
