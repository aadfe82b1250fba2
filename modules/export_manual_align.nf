// Pictures and transforms to align slices by hand.

process export_manual_align {
    tag 'all slices'
    label 'slice'

    input:
    path slices, stageAs: 'slices/*'
    path shifts, stageAs: 'shifts_xy.csv'
    path config, stageAs: 'slice_config.csv'
    path registration
    stdin

    output:
    path 'manual_align', emit: pictures
    tuple val("${task.process}"), val('all slices'), env('SECONDS'), emit: time

    script:
    """
    linum_export_manual_align.py slices shifts_xy.csv ${registration} manual_align \\
        --slice_config slice_config.csv \\
        --params -
    """

    stub:
    """
    mkdir manual_align
    touch manual_align/manual_align_metadata.json
    """
}
