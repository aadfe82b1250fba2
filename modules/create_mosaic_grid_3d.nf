// One slice: raw tiles in, one mosaic grid out, at the microscope's own resolution.
//
// Takes the whole acquisition as one folder; the digest stands for the slice's files in it.
// Params: axial_resolution, slicing_interval_mm, stage_to_array, fix_galvo_shift,
// galvo_confidence_threshold.
process create_mosaic_grid_3d {
    tag "z${slice_id}"
    label 'slice'

    input:
    tuple val(slice_id), path(raw, stageAs: 'raw'), val(digest)

    output:
    tuple val(slice_id), path("mosaic_grids/mosaic_grid_3d_z${slice_id}.ome.zarr"), val(digest), emit: grid
    tuple val("${task.process}"), val("z${slice_id}"), env('SECONDS'), emit: time

    script:
    def gpu = params.use_gpu ? '--use_gpu' : '--no-use_gpu'
    def galvo = params.fix_galvo_shift ? '--fix_galvo_shift' : '--no-fix_galvo_shift'
    def given = [
        params.axial_resolution == null ? '' : "--axial_resolution ${params.axial_resolution}",
        params.slicing_interval_mm == null ? '' : "--slicing_interval ${1000 * params.slicing_interval_mm}",
    ].join(' ')
    """
    linum_create_mosaic_grid_3d.py mosaic_grids/mosaic_grid_3d_z${slice_id}.ome.zarr \\
        --from_root_directory raw \\
        -z ${slice_id} \\
        --resolution -1 \\
        ${galvo} \\
        --galvo_threshold ${params.galvo_confidence_threshold} \\
        --stage_to_array=${params.stage_to_array} \\
        ${gpu} ${given}
    """

    stub:
    """
    mkdir -p mosaic_grids/mosaic_grid_3d_z${slice_id}.ome.zarr
    """
}
