// Chained mode: what lies below the tissue's surface, to a given depth.
//
// Gives the cropped volume, and where the surface was found.

include { gpu_flags } from './local/script'

process crop_3d_mosaic_below_interface {
    tag "z${slice_id}"
    label 'slice'
    label 'intermediate'
    label 'gpu'

    input:
    tuple val(slice_id), path(slice_in)
    stdin

    output:
    tuple val(slice_id), path("cropped_z${slice_id}.ome.zarr"), emit: slice
    path "models/z${slice_id}/*", emit: models
    tuple val("${task.process}"), val("z${slice_id}"), env('SECONDS'), emit: time

    script:
    """
    linum_crop_3d_mosaic_below_interface.py ${slice_in} cropped_z${slice_id}.ome.zarr \\
        --output_model models/z${slice_id}/crop_3d_mosaic_below_interface.json \\
        --params - \\
        ${gpu_flags(params.use_gpu, params.gpu_memory, task)}
    """

    stub:
    """
    mkdir -p cropped_z${slice_id}.ome.zarr models/z${slice_id}
    touch models/z${slice_id}/crop_3d_mosaic_below_interface.json
    touch models/z${slice_id}/crop_3d_mosaic_below_interface.npz
    """
}
