// The brain as NIfTI, for programs that read no OME-Zarr.
//
// Runs where nifti_resolution is given.
process convert_omezarr_to_nifti {
    tag "${subject}"
    label 'slice'

    input:
    val subject
    path brain

    output:
    path "${subject}.nii.gz", emit: nifti
    tuple val("${task.process}"), val("${subject}"), env('SECONDS'), emit: time

    script:
    def known = params.ras_input_orientation
    def orientation = known ? "--orientation ${known}" : ''
    """
    linum_convert_omezarr_to_nifti.py ${brain} ${subject}.nii.gz \\
        -r ${params.nifti_resolution} ${orientation}
    """

    stub:
    """
    touch ${subject}.nii.gz
    """
}
