// How far each slice lies from the one before, from the stage positions in the metadata.
//
// Params: stage_to_array, assume_unit.
//
// Takes raw tiles or mosaic grids as one folder, all slices of it, be they used or not: a slice
// that is left out still passes on its shift. Only slices whose headers cannot be read are not.
process estimate_xy_shift_from_metadata {
    tag 'all slices'
    label 'light'

    input:
    tuple path(source, stageAs: 'source'), val(digest)
    val slice_ids

    output:
    path 'shifts_xy.csv', emit: shifts
    tuple val("${task.process}"), val('all slices'), env('SECONDS'), emit: time

    script:
    def without = slice_ids ? "--without ${slice_ids.join(' ')}" : ''
    """
    linum_estimate_xy_shift_from_metadata.py source shifts_xy.csv \\
        --stage_to_array=${params.stage_to_array} --assume_unit=${params.assume_unit} ${without}
    """

    stub:
    """
    echo fixed_id,moving_id,x_shift,y_shift,x_shift_mm,y_shift_mm,reliable > shifts_xy.csv
    """
}
