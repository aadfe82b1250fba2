// The result against the phantom's truth.
include { lay_out } from './local/output'

// (Nextflow keeps the name evaluate for itself.)
process evaluate_run {
    tag 'accuracy'
    label 'brain'

    input:
    val places
    path items, stageAs: 'staged/?/item'
    tuple path(truth, stageAs: 'truth'), val(digest)

    output:
    path 'accuracy.json', emit: accuracy
    tuple val("${task.process}"), val('accuracy'), env('SECONDS'), emit: time

    script:
    """
    ${lay_out('run', places)}
    linum_evaluate.py run truth accuracy.json --grids run/mosaic_grids
    """

    stub:
    """
    echo '{}' > accuracy.json
    """
}
