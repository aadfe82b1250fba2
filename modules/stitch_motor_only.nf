// A slice stitched where the stage put its tiles: to look at beside the registered one.

include { gpu_flags } from './local/script'

process stitch_motor_only {
    tag "z${slice_id}"
    label 'slice'
    label 'gpu'

    input:
    tuple val(slice_id), path(grid)
    stdin

    output:
    tuple val(slice_id), path("diagnostics/stitch_motor_only_z${slice_id}.ome.zarr"), emit: slice
    tuple val("${task.process}"), val("z${slice_id}"), env('SECONDS'), emit: time

    script:
    """
    linum_stitch_motor_only.py ${grid} diagnostics/stitch_motor_only_z${slice_id}.ome.zarr \\
        --params - \\
        ${gpu_flags(params.use_gpu, params.gpu_memory, task)}
    """

    stub:
    """
    mkdir -p diagnostics/stitch_motor_only_z${slice_id}.ome.zarr
    """
}
