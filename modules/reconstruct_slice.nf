// Slices, whole: from their tiles to stitched, cropped, normalised volumes.
//
// Takes the mosaic grids of a group of slices, or the whole raw acquisition as one folder; the digests
// stand for the slices' files in it.
// Takes the models of learn_models, and the parameters of all stages on standard input.
// Gives the volumes, what the slices taught (tile positions, interface, normalisation), pictures, and of
// several slices a record each: one that fails leaves the others alone. A task that is tried again
// goes on with what the attempt before had finished (conf/base.config).
// Params, for raw tiles: those of create_mosaic_grid_3d.

include { acquisition_flags; gpu_flags; of_each; slice_flags; slice_tag } from './local/script'

process reconstruct_slice {
    tag "${slice_tag(slice_ids)}"
    label 'slice'
    label 'gpu'

    input:
    tuple val(slice_ids), path(grids), path(raw, stageAs: 'raw'), val(digests)
    path models, stageAs: 'learned/*'
    stdin

    output:
    path 'slices/*.ome.zarr', emit: slices, optional: true
    path 'models/*/*', emit: models, optional: true
    path 'aips/*.png', emit: aip, optional: true
    path 'previews/*.png', emit: preview, optional: true
    path 'records/*.json', emit: records, optional: true
    tuple val("${task.process}"), val("${slice_tag(slice_ids)}"), env('SECONDS'), emit: time

    script:
    def acquisition = acquisition_flags(
        params.fix_galvo_shift,
        params.galvo_confidence_threshold,
        params.stage_to_array,
        params.axial_resolution,
        params.slicing_interval_mm
    )
    """
    linum_reconstruct_slice.py ${slice_flags(slice_ids, grids, raw, acquisition, task)} \\
        --models learned \\
        --params - \\
        ${gpu_flags(params.use_gpu, params.gpu_memory, task)}
    """

    stub:
    """
    mkdir -p aips previews ${of_each(slice_ids, 'slices/slice_ID.ome.zarr models/ID')}
    touch ${of_each(slice_ids, 'models/ID/register_tiles.json models/ID/normalize_intensities_per_slice.json')}
    touch ${of_each(slice_ids, 'models/ID/crop_3d_mosaic_below_interface.json models/ID/compensate_attenuation.json')}
    touch ${of_each(slice_ids, 'models/ID/crop_3d_mosaic_below_interface.npz models/ID/compensate_attenuation.npz')}
    touch ${of_each(slice_ids, 'aips/aip_ID.png previews/slice_ID.png')}
    """
}
