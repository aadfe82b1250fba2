// Chained mode: tiles at the working resolution.
//
// Takes a native grid. The first stage of the chain; fused runs have all of it in one task.
process resample_mosaic_grid {
    tag "z${slice_id}"
    label 'slice'

    input:
    tuple val(slice_id), path(grid), val(digest)
    stdin

    output:
    tuple val(slice_id), path("resampled_z${slice_id}.ome.zarr"), emit: grid
    tuple val("${task.process}"), val("z${slice_id}"), env('SECONDS'), emit: time

    script:
    def gpu = params.use_gpu ? '--use_gpu' : '--no-use_gpu'
    """
    linum_resample_mosaic_grid.py ${grid} resampled_z${slice_id}.ome.zarr \\
        --params - \\
        ${gpu}
    """

    stub:
    """
    mkdir resampled_z${slice_id}.ome.zarr
    """
}
