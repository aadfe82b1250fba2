// Chained mode: one slice on the canvas that all slices share.
//
// Takes the slice, all slices, whose extents make the canvas, the registration, and what was measured of
// pairs.

include { gpu_flags } from './local/script'

process align_mosaics_3d_from_shifts {
    tag "z${slice_id}"
    label 'slice'
    label 'intermediate'
    label 'gpu'

    input:
    tuple val(slice_id), path(slice_in)
    path slices, stageAs: 'all/*'
    path registration
    path pairs, stageAs: 'pairs/*'

    output:
    tuple val(slice_id), path("aligned/${slice_in.name}"), emit: slice
    tuple val("${task.process}"), val("z${slice_id}"), env('SECONDS'), emit: time

    script:
    def overlaps = params.overlap_attenuation_enabled ? '--pairs pairs' : ''
    """
    linum_align_mosaics_3d_from_shifts.py ${slice_in} aligned/${slice_in.name} \\
        --registration ${registration} \\
        --slices all \\
        ${overlaps} \\
        ${gpu_flags(params.use_gpu, params.gpu_memory, task)}
    """

    stub:
    """
    mkdir -p aligned/${slice_in.name}
    """
}
