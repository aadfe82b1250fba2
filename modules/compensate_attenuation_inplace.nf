// Chained mode: the light that was lost in the tissue above, made up for.
//
// Gives the corrected volume, and the attenuation that was found; no model when it is switched off.

include { gpu_flags } from './local/script'

process compensate_attenuation_inplace {
    tag "z${slice_id}"
    label 'slice'
    label 'intermediate'
    label 'gpu'

    input:
    tuple val(slice_id), path(slice_in)
    stdin

    output:
    tuple val(slice_id), path("attenuation_z${slice_id}.ome.zarr"), emit: slice
    path "models/z${slice_id}/compensate_attenuation*", emit: models, optional: true
    tuple val("${task.process}"), val("z${slice_id}"), env('SECONDS'), emit: time

    script:
    """
    linum_compensate_attenuation_inplace.py ${slice_in} attenuation_z${slice_id}.ome.zarr \\
        --output_model models/z${slice_id}/compensate_attenuation.json \\
        --params - \\
        ${gpu_flags(params.use_gpu, params.gpu_memory, task)}
    """

    stub:
    """
    mkdir -p attenuation_z${slice_id}.ome.zarr models/z${slice_id}
    touch models/z${slice_id}/compensate_attenuation.json
    touch models/z${slice_id}/compensate_attenuation.npz
    """
}
