// One slice, whole: from its tiles to a stitched, cropped, normalised volume.
//
// Takes the slice's mosaic grid, or the whole raw acquisition as one folder; the digest stands for
// the slice's files in it.
// Takes the models of learn_models, and the parameters of all its stages on standard input.
// Gives the volume, what the slice taught (tile positions, interface, normalisation), and pictures.
// Params, for raw tiles: those of create_mosaic_grid_3d.

include { acquisition_flags; gpu_flags } from './local/script'

process reconstruct_slice {
    tag "z${slice_id}"
    label 'slice'
    label 'gpu'

    input:
    tuple val(slice_id), path(grid), path(raw, stageAs: 'raw'), val(digest)
    path models, stageAs: 'learned/*'
    stdin

    output:
    tuple val(slice_id), path("slices/slice_z${slice_id}.ome.zarr"), emit: slice
    path "models/z${slice_id}/*", emit: models
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
    """
    linum_reconstruct_slice.py ${tiles} slices/slice_z${slice_id}.ome.zarr \\
        --models learned \\
        --output_models models/z${slice_id} \\
        --aip aips/aip_z${slice_id}.png \\
        --preview previews/slice_z${slice_id}.png \\
        --params - \\
        ${gpu_flags(params.use_gpu, params.gpu_memory, task)}
    """

    stub:
    """
    mkdir -p slices/slice_z${slice_id}.ome.zarr models/z${slice_id} aips previews
    touch models/z${slice_id}/register_tiles.json
    touch models/z${slice_id}/crop_3d_mosaic_below_interface.json
    touch models/z${slice_id}/crop_3d_mosaic_below_interface.npz
    touch models/z${slice_id}/compensate_attenuation.json
    touch models/z${slice_id}/compensate_attenuation.npz
    touch models/z${slice_id}/normalize_intensities_per_slice.json
    touch aips/aip_z${slice_id}.png previews/slice_z${slice_id}.png
    """
}
