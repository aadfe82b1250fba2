// Focal surface and flat field of the microscope, learned once from tiles of all slices.
//
// Takes the grids with their digests, first slice first, and its parameters on standard input.
// A correction that is switched off leaves no model; one that is on leaves JSON and NPZ.
process learn_models {
    tag 'all slices'
    label 'slice'

    input:
    tuple path(grids, stageAs: 'grids/*'), val(digests)
    stdin

    output:
    path 'models/*', emit: models, optional: true
    tuple val("${task.process}"), val('all slices'), env('SECONDS'), emit: time

    script:
    def gpu = params.use_gpu ? '--use_gpu' : '--no-use_gpu'
    """
    linum_learn_models.py grids/* \\
        --output models \\
        --params - \\
        ${gpu}
    """

    stub:
    """
    mkdir models
    touch models/detect_focal_curvature.json models/detect_focal_curvature.npz
    touch models/fix_illumination_3d.json models/fix_illumination_3d.npz
    """
}
