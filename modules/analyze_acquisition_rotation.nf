// How the stage lies in the pictures, slice by slice: to look at.
//
// Takes the tile positions of all slices, staged under numbers, and the place of each in the output
// folder.

include { lay_out } from './local/script'

process analyze_acquisition_rotation {
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
    linum_analyze_acquisition_rotation.py run diagnostics/acquisition_rotation.json \\
        --picture diagnostics/acquisition_rotation.png
    """

    stub:
    """
    mkdir diagnostics
    touch diagnostics/acquisition_rotation.json diagnostics/acquisition_rotation.png
    """
}
