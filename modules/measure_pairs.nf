// A group of pairs of slices, registered and compared as soon as its slices are there.
//
// Takes the ids of the slices whose pairs with the next ones are measured, the volumes of these and
// of the next ones, and on standard input the parameters with the rows of shifts_xy.csv up to there.

include { gpu_flags } from './local/script'

process measure_pairs {
    tag "z${slice_ids[0]}"
    label 'slice'
    label 'gpu'
    label 'intermediate'

    input:
    tuple val(slice_ids), path(slices, stageAs: 'slices/*')
    stdin

    output:
    path 'pairs/*', emit: pairs
    tuple val("${task.process}"), val("z${slice_ids[0]}"), env('SECONDS'), emit: time

    script:
    """
    linum_measure_pairs.py slices pairs \\
        --ids ${slice_ids.join(' ')} \\
        ${params.assess_quality_enabled ? '--rating' : '--no-rating'} \\
        ${params.overlap_attenuation_enabled ? '--overlaps' : '--no-overlaps'} \\
        --params - \\
        ${gpu_flags(params.use_gpu, params.gpu_memory, task)}
    """

    stub:
    """
    mkdir pairs
    touch pairs/register_pairs_z${slice_ids[0]}.json pairs/register_pairs_z${slice_ids[0]}.npz
    """
}
