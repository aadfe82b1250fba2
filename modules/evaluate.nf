// The result against the phantom's truth.
//
// Takes the results so far, staged under numbers, and the place of each in the output folder: the
// script finds them laid out as they will be published. Without mosaic grids among them, figures that
// need the tiles again are not measured.
// Params: those of reconstruct_slice and stack_slices_motor, for the ideal run beside this one.
// (Nextflow keeps the name evaluate to itself.)

include { lay_out } from './local/script'

process evaluate_run {
    tag 'accuracy'
    label 'slice'

    input:
    val places
    path items, stageAs: 'staged/?/item'
    tuple path(truth, stageAs: 'truth'), val(digest)
    stdin

    output:
    path 'accuracy.json', emit: accuracy
    tuple val("${task.process}"), val('accuracy'), env('SECONDS'), emit: time

    script:
    def grids = places.flatten().any { place -> place.startsWith('mosaic_grids/') } ? '--grids run/mosaic_grids' : ''
    """
    ${lay_out('run', places)}
    linum_evaluate.py run truth accuracy.json ${grids} --params -
    """

    stub:
    """
    echo '{}' > accuracy.json
    """
}
