// Chained mode: corrected tiles put together into one volume.
//
// Takes the positions of register_tiles.

include { gpu_flags } from './local/script'

process stitch_3d_refined {
    tag "z${slice_id}"
    label 'slice'
    label 'intermediate'
    label 'gpu'

    input:
    tuple val(slice_id), path(grid), path(positions)
    stdin

    output:
    tuple val(slice_id), path("stitched_z${slice_id}.ome.zarr"), emit: slice
    tuple val("${task.process}"), val("z${slice_id}"), env('SECONDS'), emit: time

    script:
    """
    linum_stitch_3d_refined.py ${grid} stitched_z${slice_id}.ome.zarr \\
        --positions ${positions} \\
        --params - \\
        ${gpu_flags(params.use_gpu, params.gpu_memory, task)}
    """

    stub:
    """
    mkdir stitched_z${slice_id}.ome.zarr
    """
}
