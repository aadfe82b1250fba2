// The table that says which slices are used.
//
// Takes raw tiles or mosaic grids as one folder, a table of decisions made before, or [], and the
// ids of slices with tiles that cannot be read.
// Params: exclude_first_slices, slices, assume_unit.
process generate_slice_config {
    tag 'all slices'
    label 'light'

    input:
    tuple path(source, stageAs: 'source'), val(digest)
    path given, stageAs: 'given.csv'
    val slice_ids

    output:
    path 'slice_config.csv', emit: config
    tuple val("${task.process}"), val('all slices'), env('SECONDS'), emit: time

    script:
    def before = given ? '--given given.csv' : ''
    def without = slice_ids ? "--bad ${slice_ids.join(' ')}" : ''
    def only = params.slices ? "--only '${params.slices}'" : ''
    """
    linum_generate_slice_config.py source slice_config.csv \\
        --exclude_first ${params.exclude_first_slices} --assume_unit=${params.assume_unit} \\
        ${before} ${without} ${only}
    """

    stub:
    """
    ${given ? 'cp given.csv slice_config.csv' : 'echo slice_id,use > slice_config.csv'}
    """
}
