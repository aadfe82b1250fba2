// One page that shows the run to a person.
//
// Takes all results, staged under numbers, and the place of each in the output folder; parameters
// and the time of each task come on standard input. Verdicts of a follower pass through, so that the
// page can be made again from the output folder.

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
    path 'verdicts.jsonl', optional: true

    script:
    """
    ${lay_out('run', places)}
    if [ -e run/verdicts.jsonl ]; then cp run/verdicts.jsonl .; fi
    linum_generate_pipeline_report.py run report.html --info -
    """

    stub:
    """
    touch report.html
    """
}
