// Chained mode: the average intensity projection of corrected tiles as a picture.
//
// Tiles stand side by side with their overlap, so that a wrong flat field is seen at the edges.

include { gpu_flags } from './local/script'

process aip_png {
    tag "z${slice_id}"
    label 'slice'
    label 'gpu'

    input:
    tuple val(slice_id), path(grid)

    output:
    path "aips/aip_z${slice_id}.png", emit: aip
    tuple val("${task.process}"), val("z${slice_id}"), env('SECONDS'), emit: time

    script:
    """
    linum_aip_png.py ${grid} aips/aip_z${slice_id}.png ${gpu_flags(params.use_gpu, params.gpu_memory, task)}
    """

    stub:
    """
    mkdir aips
    touch aips/aip_z${slice_id}.png
    """
}
