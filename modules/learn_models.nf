// What the microscope does to all tiles alike, learned once from tiles of all slices: focal surface,
// flat field, axial response, scan distortion.
//
// Takes the grids with their digests, first slice first, or the whole raw acquisition as one folder
// and the ids of its slices; and its parameters on standard input. A correction that is switched off
// leaves no model, nor does a scan that is straight; others leave JSON and NPZ.
// Params, for raw tiles: those of create_mosaic_grid_3d.

include { acquisition_flags; gpu_flags; gpus_flag } from './local/script'

process learn_models {
    tag 'all slices'
    label 'brain'
    label 'gpu'

    input:
    tuple val(slice_ids), path(grids, stageAs: 'grids/*'), path(raw, stageAs: 'raw'), val(digests)
    stdin

    output:
    path 'models/*', emit: models, optional: true
    tuple val("${task.process}"), val('all slices'), env('SECONDS'), emit: time

    script:
    def acquisition = acquisition_flags(
        params.fix_galvo_shift,
        params.galvo_confidence_threshold,
        params.stage_to_array,
        params.axial_resolution,
        params.slicing_interval_mm
    )
    def tiles = raw ? "--from_root_directory raw -z ${slice_ids.join(' ')} ${acquisition}" : 'grids/*'
    // All where no other task has work for them meanwhile: no grids are made or resampled.
    def alone = params.fused && !(raw && params.keep_mosaic_grids)
    def all_gpus = alone ? gpus_flag(params.use_gpu, params.gpu_count, task) : ''
    """
    linum_learn_models.py ${tiles} \\
        --output models \\
        --params - \\
        ${gpu_flags(params.use_gpu, params.gpu_memory, task)} ${all_gpus}
    """

    stub:
    """
    mkdir models
    touch models/detect_focal_curvature.json models/detect_focal_curvature.npz
    touch models/fix_illumination_3d.json models/fix_illumination_3d.npz
    touch models/compensate_psf.json models/compensate_psf.npz
    """
}
