// Chained mode: agarose to 0, most tissue between 0 and 1.
//
// Gives the finished slice, the same as that of reconstruct_slice to the bit.

include { gpu_flags } from './local/script'

process normalize_intensities_per_slice {
    tag "z${slice_id}"
    label 'slice'
    label 'gpu'

    input:
    tuple val(slice_id), path(slice_in)
    stdin

    output:
    tuple val(slice_id), path("slices/slice_z${slice_id}.ome.zarr"), emit: slice
    path "models/z${slice_id}/*", emit: models
    tuple val("${task.process}"), val("z${slice_id}"), env('SECONDS'), emit: time

    script:
    """
    linum_normalize_intensities_per_slice.py ${slice_in} slices/slice_z${slice_id}.ome.zarr \\
        --output_model models/z${slice_id}/normalize_intensities_per_slice.json \\
        --params - \\
        ${gpu_flags(params.use_gpu, params.gpu_memory, task)}
    """

    stub:
    """
    mkdir -p slices/slice_z${slice_id}.ome.zarr models/z${slice_id}
    touch models/z${slice_id}/normalize_intensities_per_slice.json
    """
}
