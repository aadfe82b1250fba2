// One page that shows the run to a person.
//
// Takes all results, staged under numbers, and the place of each in the output folder; parameters
// and the time of each task come on standard input.

include { lay_out } from './local/script'

process generate_pipeline_report {
    tag 'report'
    label 'brain'

    input:
    val places
    path items, stageAs: 'staged/?/item'
    stdin

    output:
    path 'report.html', emit: report

    script:
    """
    ${lay_out('run', places)}
    linum_generate_pipeline_report.py run report.html --info -
    """

    stub:
    """
    touch report.html
    """
}
