// Whether an atlas can be read, before a brain is made to be brought into it.
//
// Takes the atlas, a file or a folder, with a digest of what is in it.

process check_atlas {
    tag 'atlas'
    label 'slice'

    input:
    tuple path(atlas), val(digest)
    stdin

    output:
    path atlas, emit: atlas, includeInputs: true
    tuple val("${task.process}"), val('atlas'), env('SECONDS'), emit: time

    script:
    """
    linum_check_atlas.py ${atlas} --params -
    """

    stub:
    """
    echo checked
    """
}
