// One slice: raw tiles in, one mosaic grid out, at the microscope's own resolution.
//
// Takes the whole acquisition as one folder; the digest stands for the slice's files in it.
// Params: axial_resolution, slicing_interval_mm, stage_to_array, fix_galvo_shift,
// galvo_confidence_threshold.

include { acquisition_flags; gpu_flags } from './local/script'

process create_mosaic_grid_3d {
    tag "z${slice_id}"
    label 'slice'
    label 'gpu'

    input:
    tuple val(slice_id), path(raw, stageAs: 'raw'), val(digest)

    output:
    tuple val(slice_id), path("mosaic_grids/mosaic_grid_3d_z${slice_id}.ome.zarr"), val(digest), emit: grid
    tuple val("${task.process}"), val("z${slice_id}"), env('SECONDS'), emit: time

    script:
    def acquisition = acquisition_flags(
        params.fix_galvo_shift,
        params.galvo_confidence_threshold,
        params.stage_to_array,
        params.axial_resolution,
        params.slicing_interval_mm
    )
    """
    linum_create_mosaic_grid_3d.py mosaic_grids/mosaic_grid_3d_z${slice_id}.ome.zarr \\
        --from_root_directory raw \\
        -z ${slice_id} \\
        --resolution -1 \\
        ${acquisition} \\
        ${gpu_flags(params.use_gpu, params.gpu_memory, task)}
    """

    stub:
    """
    mkdir -p mosaic_grids/mosaic_grid_3d_z${slice_id}.ome.zarr
    """
}
