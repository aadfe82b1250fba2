// One slice as a picture: its tiles projected along depth, evened out, registered and stitched.
//
// Takes the slice's mosaic grid, or the whole raw acquisition as one folder; the digest stands for
// the slice's files in it.
// Takes the flat field of estimate_illumination (none where that is off), and the parameters of all
// its stages on standard input.
// Params, for raw tiles: those of create_mosaic_grid_3d.

include { acquisition_flags; gpu_flags } from './local/script'

process reconstruct_slice_2d {
    tag "z${slice_id}"
    label 'slice'
    label 'gpu'

    input:
    tuple val(slice_id), path(grid), path(raw, stageAs: 'raw'), val(digest)
    path models, stageAs: 'learned/*'
    stdin

    output:
    tuple val(slice_id), path("slices_2d/slice_2d_z${slice_id}.ome.zarr"), emit: slice
    path "models/z${slice_id}/*.json", emit: models
    path "aips/aip_z${slice_id}.png", emit: aip
    path "previews/slice_z${slice_id}.png", emit: preview
    tuple val("${task.process}"), val("z${slice_id}"), env('SECONDS'), emit: time

    script:
    def acquisition = acquisition_flags(
        params.fix_galvo_shift,
        params.galvo_confidence_threshold,
        params.stage_to_array,
        params.axial_resolution,
        params.slicing_interval_mm
    )
    def tiles = raw ? "--from_root_directory raw -z ${slice_id} ${acquisition}" : grid
    def learned = models ? '--models learned' : ''
    """
    linum_reconstruct_slice_2d.py ${tiles} slices_2d/slice_2d_z${slice_id}.ome.zarr \\
        --output_models models/z${slice_id} \\
        --aip aips/aip_z${slice_id}.png \\
        --preview previews/slice_z${slice_id}.png \\
        --params - \\
        ${gpu_flags(params.use_gpu, params.gpu_memory, task)} ${learned}
    """

    stub:
    """
    mkdir -p slices_2d/slice_2d_z${slice_id}.ome.zarr models/z${slice_id} aips previews
    touch models/z${slice_id}/register_tiles.json
    touch aips/aip_z${slice_id}.png previews/slice_z${slice_id}.png
    """
}
