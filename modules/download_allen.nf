// The average template of the Allen mouse brain atlas, from its public archive.
//
// Runs only when it is asked for instead of an atlas file; needs the network. What was downloaded
// is kept in the user's cache.
process download_allen {
    tag "${params.allen_resolution} um"
    label 'slice'

    input:
    stdin

    output:
    path 'allen_average_template.nii.gz', emit: atlas
    tuple val("${task.process}"), val('atlas'), env('SECONDS'), emit: time

    script:
    """
    linum_download_allen.py allen_average_template.nii.gz --params -
    """

    stub:
    """
    touch allen_average_template.nii.gz
    """
}
