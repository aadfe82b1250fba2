// How far off tiles are at their seams, by the stage and registered: to look at.
//
// Takes the tile positions of all slices, staged under numbers, and the place of each in the output
// folder.

include { lay_out } from './local/script'

process compare_stitching {
    tag 'all slices'
    label 'light'

    input:
    val places
    path items, stageAs: 'staged/?/item'

    output:
    path 'diagnostics/*', emit: diagnostics
    tuple val("${task.process}"), val('all slices'), env('SECONDS'), emit: time

    script:
    """
    ${lay_out('run', places)}
    linum_compare_stitching.py run diagnostics/compare_stitching.json \\
        --picture diagnostics/compare_stitching.png
    """

    stub:
    """
    mkdir diagnostics
    touch diagnostics/compare_stitching.json diagnostics/compare_stitching.png
    """
}
