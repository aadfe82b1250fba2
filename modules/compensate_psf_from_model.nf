// Chained mode: the axial response, by a confocal model, taken off each plane.
//
// Takes the models of learn_models; does not learn from this slice alone.

include { gpu_flags } from './local/script'

process compensate_psf_from_model {
    tag "z${slice_id}"
    label 'slice'
    label 'intermediate'
    label 'gpu'

    input:
    tuple val(slice_id), path(slice_in)
    path models, stageAs: 'learned/*'
    stdin

    output:
    tuple val(slice_id), path("axial_z${slice_id}.ome.zarr"), emit: slice
    tuple val("${task.process}"), val("z${slice_id}"), env('SECONDS'), emit: time

    script:
    """
    linum_compensate_psf_from_model.py ${slice_in} axial_z${slice_id}.ome.zarr \\
        --models learned \\
        --params - \\
        ${gpu_flags(params.use_gpu, params.gpu_memory, task)}
    """

    stub:
    """
    mkdir axial_z${slice_id}.ome.zarr
    """
}
